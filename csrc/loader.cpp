// Rows of encoded columns into a batch, in any order. One thread: a loader runs beside training.
#include "core.h"

namespace hotrows {
namespace {

template <typename Stored, typename Value>
void gather(const void* column, const int64_t* order, int64_t n, Value* out) {
  const Stored* const values = static_cast<const Stored*>(column);
  for (int64_t i = 0; i < n; ++i) out[i] = static_cast<Value>(values[order[i]]);
}

}  // namespace
}  // namespace hotrows

using namespace hotrows;

// ids[f * stride + i] = columns[f][order[i]] for f < num_features and i < n. widths: bytes per stored
// id, 1, 2, 4 (unsigned) or 8.
HOTROWS_API int64_t hotrows_gather_ids(const int64_t* columns, const int64_t* widths,
                                       int64_t num_features, const int64_t* order, int64_t n,
                                       int64_t* ids, int64_t stride) {
  for (int64_t f = 0; f < num_features; ++f) {
    const void* const column = reinterpret_cast<const void*>(columns[f]);
    int64_t* const out = ids + f * stride;
    if (widths[f] == 1) gather<uint8_t>(column, order, n, out);
    if (widths[f] == 2) gather<uint16_t>(column, order, n, out);
    if (widths[f] == 4) gather<uint32_t>(column, order, n, out);
    if (widths[f] == 8) gather<int64_t>(column, order, n, out);
  }
  return 0;
}

// dense[i] = stored[order[i]], rows of num_dense numbers; labels[i] = stored_labels[order[i]].
HOTROWS_API int64_t hotrows_gather_dense(const float* stored, int64_t num_dense,
                                         const uint8_t* stored_labels, const int64_t* order,
                                         int64_t n, float* dense, float* labels) {
  constexpr int64_t kAhead = 16;
  for (int64_t i = 0; i < n; ++i) {
    if (i + kAhead < n) prefetch(stored + order[i + kAhead] * num_dense);
    const float* const row = stored + order[i] * num_dense;
    for (int64_t f = 0; f < num_dense; ++f) dense[i * num_dense + f] = row[f];
  }
  gather<uint8_t>(stored_labels, order, n, labels);
  return 0;
}
