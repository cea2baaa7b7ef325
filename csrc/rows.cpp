// What touches rows: pool, the sum of gradients, the fused update, and the first values of new rows.
//
// A record is [weights | float32 state | int32 step], see record.py. Work is split by bags or by
// distinct rows, so every sum is made by one thread in the order of the batch: results do not depend
// on the number of threads. Rows are far apart in memory; each loop asks for the one it needs a few
// turns later.
#include "record.h"
#include "runs.h"

namespace {

using namespace hotrows;

// ---- pool ---------------------------------------------------------------------------------------

// Distinct rows, in ascending order, to a dense [U, D] block that the caches hold.
template <int kDim>
void collect(const uint8_t* records, const Layout& layout, const int64_t* slots, int64_t num_rows,
             float* __restrict out) {
  const int64_t width = kDim ? kDim : layout.dim;
  CHECK(width == layout.dim && are_within(slots, num_rows, 0, INT64_MAX / layout.stride), width, layout.dim, num_rows);
#pragma omp parallel for schedule(static)
  for (int64_t u = 0; u < num_rows; ++u) {
    if (u + kAhead < num_rows)
      prefetch_bytes<false>(records + slots[u + kAhead] * layout.stride, layout.state_offset);
    read_weights<kDim>(records + slots[u] * layout.stride, layout, out + u * width);
  }
}

// The block's rows to the vector of each bag.
template <int kDim>
void pool(const float* __restrict rows, int64_t dim, const int32_t* inverse, int64_t num_ids,
          const int32_t* bag_starts, const float* weights, int64_t num_bags, float* __restrict out) {
  const int64_t width = kDim ? kDim : dim;
#pragma omp parallel for schedule(static)
  for (int64_t m = 0; m < num_bags; ++m) {
    const int64_t begin = bag_starts ? bag_starts[m] : m, end = bag_starts ? bag_starts[m + 1] : m + 1;
    float* vector = out + m * width;
    if (!bag_starts && !weights) {
      if (begin + kAhead < num_ids) prefetch(rows + inverse[begin + kAhead] * width);
      std::memcpy(vector, rows + inverse[begin] * width, static_cast<size_t>(width) * 4);
      continue;
    }
    std::fill(vector, vector + width, 0.0f);
    for (int64_t n = begin; n < end; ++n) {
      if (n + kAhead < num_ids) prefetch(rows + inverse[n + kAhead] * width);
      const float* row = rows + inverse[n] * width;
      const float scale = weights ? weights[n] : 1.0f;
      for (int64_t d = 0; d < width; ++d) vector[d] += scale * row[d];
    }
  }
}

// ---- gradients ----------------------------------------------------------------------------------

// The first row of each thread's share: shares hold about the same number of ids plus rows.
int64_t share_begin(const int32_t* starts, int64_t num_rows, int thread, int num_threads) {
  const int64_t total = starts[num_rows] - starts[0] + num_rows, target = starts[0] + total * thread / num_threads;
  int64_t low = 0, high = num_rows;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    starts[middle] + middle < target ? low = middle + 1 : high = middle;
  }
  CHECK(thread < num_threads || low == num_rows, thread, num_threads, low, num_rows);
  return low;
}

template <int kDim>
void sum_gradients(const Runs<float>& runs, int64_t dim, float* out) {
  const int64_t width = kDim ? kDim : dim;
  if (kChecks) runs.check_all();
#pragma omp parallel
  {
    const int thread = omp_get_thread_num(), threads = omp_get_num_threads();
    const int64_t end = share_begin(runs.starts, runs.num_rows, thread + 1, threads);
    for (int64_t u = share_begin(runs.starts, runs.num_rows, thread, threads); u < end; ++u)
      sum_run<kDim>(runs, u, width, out + u * width);
  }
}

// ---- row optimizers: w and state of one row, g its summed gradient --------------------------------

struct Sgd {
  float lr, weight_decay;
  explicit Sgd(const double* h) : lr(h[0]), weight_decay(h[1]) {}
  template <int kDim>
  void apply(float* __restrict w, float*, int32_t*, const float* __restrict g, int64_t dim) const {
    const int64_t width = kDim ? kDim : dim;
    for (int64_t d = 0; d < width; ++d) w[d] = w[d] - lr * g[d];
  }
};

struct Adagrad {
  float lr, weight_decay, eps;
  explicit Adagrad(const double* h) : lr(h[0]), weight_decay(h[1]), eps(h[2]) {}
  template <int kDim>
  void apply(float* __restrict w, float* __restrict state, int32_t*, const float* __restrict g, int64_t dim) const {
    const int64_t width = kDim ? kDim : dim;
    for (int64_t d = 0; d < width; ++d) {
      const float s = state[d] + g[d] * g[d];
      state[d] = s;
      w[d] = w[d] - lr * g[d] / (std::sqrt(s) + eps);
    }
  }
};

struct RowWiseAdagrad {
  float lr, weight_decay, eps;
  explicit RowWiseAdagrad(const double* h) : lr(h[0]), weight_decay(h[1]), eps(h[2]) {}
  template <int kDim>
  void apply(float* __restrict w, float* __restrict state, int32_t*, const float* __restrict g, int64_t dim) const {
    const int64_t width = kDim ? kDim : dim;
    constexpr int64_t kLanes = 16;
    float lanes[kLanes] = {};
    int64_t d = 0;
    for (; d + kLanes <= width; d += kLanes)
      for (int64_t k = 0; k < kLanes; ++k) lanes[k] += g[d + k] * g[d + k];
    for (int64_t k = 0; d + k < width; ++k) lanes[k] += g[d + k] * g[d + k];
    for (int64_t half = kLanes / 2; half > 0; half /= 2)
      for (int64_t k = 0; k < half; ++k) lanes[k] += lanes[k + half];
    step<kDim>(w, state, g, dim, lanes[0] / static_cast<float>(width));
  }
  // mean_square: over the whole row, of which g may be some columns.
  template <int kDim>
  void step(float* __restrict w, float* __restrict state, const float* __restrict g, int64_t dim,
            float mean_square) const {
    const int64_t width = kDim ? kDim : dim;
    state[0] += mean_square;
    const float rate = lr / (std::sqrt(state[0]) + eps);
    for (int64_t k = 0; k < width; ++k) w[k] = w[k] - rate * g[k];
  }
};

struct Adam {
  double lr, beta1, beta2;
  float weight_decay, eps, one_minus_beta1, one_minus_beta2, rate;
  explicit Adam(const double* h)
      : lr(h[0]), beta1(h[2]), beta2(h[3]), weight_decay(h[1]), eps(h[4]), one_minus_beta1(1 - h[2]),
        one_minus_beta2(1 - h[3]), rate(h[0] * std::sqrt(h[6]) / h[5]) {}
  template <int kDim>
  void apply(float* __restrict w, float* __restrict state, int32_t* step, const float* __restrict g, int64_t dim) const {
    const int64_t width = kDim ? kDim : dim;
    float r = rate;
    if (step) {
      const double t = ++*step;
      r = static_cast<float>(lr * std::sqrt(1 - std::pow(beta2, t)) / (1 - std::pow(beta1, t)));
    }
    float* __restrict m = state;
    float* __restrict v = state + width;
    for (int64_t d = 0; d < width; ++d) {
      m[d] = m[d] + one_minus_beta1 * (g[d] - m[d]);
      v[d] = v[d] + one_minus_beta2 * (g[d] * g[d] - v[d]);
      w[d] = w[d] - r * m[d] / (std::sqrt(v[d]) + eps);
    }
  }
};

struct Ftrl {
  float lr, weight_decay, l1, l2, beta;
  explicit Ftrl(const double* h) : lr(h[0]), weight_decay(0), l1(h[2]), l2(h[3]), beta(h[4]) {}
  template <int kDim>
  void apply(float* __restrict w, float* __restrict state, int32_t*, const float* __restrict g, int64_t dim) const {
    const int64_t width = kDim ? kDim : dim;
    float* __restrict n = state;
    float* __restrict z = state + width;
    for (int64_t d = 0; d < width; ++d) {
      const float more = n[d] + g[d] * g[d], root = std::sqrt(more);
      z[d] = z[d] + (g[d] - (root - std::sqrt(n[d])) / lr * w[d]);
      n[d] = more;
      const float shrunk = (std::copysign(l1, z[d]) - z[d]) / ((beta + root) / lr + l2);
      w[d] = std::fabs(z[d]) <= l1 ? 0.0f : shrunk;
    }
  }
};

// ---- update -------------------------------------------------------------------------------------

// Which ids the rows of a store hold: row first_rows[p] + k of piece p is id first_id + k * id_step of
// the table with this key, and the store has the table's columns from first_column on.
struct Piece {
  HOTROWS_PIECE(HOTROWS_FIELD)
};

// The random stream of each row: a function of the table's key and the id.
struct Pieces {
  const int64_t* first_rows;
  const Piece* pieces;
  int64_t num_pieces;

  const Piece& of(int64_t row) const { return pieces[place(row)]; }
  uint64_t row_key(int64_t row) const {
    const int64_t p = place(row);
    const uint64_t id = static_cast<uint64_t>(pieces[p].first_id + (row - first_rows[p]) * pieces[p].id_step);
    return mix64(static_cast<uint64_t>(pieces[p].key) ^ mix64(id));
  }

 private:
  int64_t place(int64_t row) const {
    CHECK(row >= first_rows[0] && row < first_rows[num_pieces], row, first_rows[0], first_rows[num_pieces]);
    return std::upper_bound(first_rows, first_rows + num_pieces + 1, row) - first_rows - 1;
  }
};

struct Rounding {
  Pieces pieces;
  int64_t step;

  uint64_t key(int64_t row) const { return pieces.row_key(row) ^ 0x6A09E667F3BCC908ull; }
  uint64_t first(int64_t row) const {
    const Piece& piece = pieces.of(row);
    return static_cast<uint64_t>(step * piece.num_columns + piece.first_column);
  }
};

struct Target {
  uint8_t* records;
  Layout layout;
  const int64_t* slots;
  const int64_t* rows;
  const float* decay;         // what weight_decay is multiplied with, by distinct row; null: 1
  const float* mean_squares;  // of the gradient over all columns, by distinct row; null: these are all
  uint8_t* record(int64_t u) const { return records + slots[u] * layout.stride; }

  // Slots are those of distinct rows.
  void check_all(int64_t num_rows, [[maybe_unused]] const Pieces& pieces) const {
    layout.check_all();
    CHECK(are_within(slots, num_rows, 0, INT64_MAX / layout.stride), num_rows);
    std::vector<int64_t> sorted(slots, slots + num_rows);
    std::sort(sorted.begin(), sorted.end());
    CHECK(rises(sorted.data(), num_rows), num_rows);
    CHECK(never_falls(pieces.first_rows, pieces.num_pieces + 1), pieces.num_pieces);
  }
};

template <class Optimizer, int kDim>
void update_row(const Optimizer& optimizer, const Target& target, const Rounding& rounding, int64_t u, float* g,
                float* scratch) {
  const Layout& layout = target.layout;
  const int64_t width = kDim ? kDim : layout.dim;
  uint8_t* record = target.record(u);
  float* state = reinterpret_cast<float*>(record + layout.state_offset);
  int32_t* step = layout.step_offset >= 0 ? reinterpret_cast<int32_t*>(record + layout.step_offset) : nullptr;
  const bool is_narrow = layout.bits != 32;
  float* w = is_narrow ? scratch : reinterpret_cast<float*>(record);
  if (is_narrow) read_weights<kDim>(record, layout, w);
  if (optimizer.weight_decay != 0) {
    const float weight_decay = target.decay ? optimizer.weight_decay * target.decay[u] : optimizer.weight_decay;
    for (int64_t d = 0; d < width; ++d) g[d] = g[d] + weight_decay * w[d];
  }
  if constexpr (std::is_same_v<Optimizer, RowWiseAdagrad>) {
    if (target.mean_squares)
      optimizer.template step<kDim>(w, state, g, width, target.mean_squares[u]);
    else
      optimizer.template apply<kDim>(w, state, step, g, width);
  } else {
    optimizer.template apply<kDim>(w, state, step, g, width);
  }
  if (is_narrow) {
    const uint64_t key = rounding.key(target.rows[u]), first = rounding.first(target.rows[u]);
    const auto random = [=](int64_t d) { return random_bits(key, first + d); };
    uint16_t* half = reinterpret_cast<uint16_t*>(record);
    if (layout.has_scale())
      write_integers<kDim>(record, layout, w, *scale_of(record, layout), random);
    else
      for (int64_t d = 0; d < width; ++d) half[d] = round_stochastically(w[d], random(d));
  }
}

template <class Optimizer, int kDim>
void update(const Optimizer& optimizer, const Target& target, const Runs<float>& runs, const Rounding& rounding) {
  const int64_t width = kDim ? kDim : target.layout.dim;
  if (kChecks) runs.check_all(), target.check_all(runs.num_rows, rounding.pieces);
#pragma omp parallel
  {
    constexpr int64_t kInline = kDim ? kDim : 1;
    float g_inline[kInline], w_inline[kInline];
    std::vector<float> heap(kDim ? 0 : 2 * width);
    float* g = kDim ? g_inline : heap.data();
    float* w = kDim ? w_inline : heap.data() + width;
    const int thread = omp_get_thread_num(), threads = omp_get_num_threads();
    const int64_t end = share_begin(runs.starts, runs.num_rows, thread + 1, threads);
    for (int64_t u = share_begin(runs.starts, runs.num_rows, thread, threads); u < end; ++u) {
      if (u + kAhead < end) prefetch_bytes<true>(target.record(u + kAhead), target.layout.stride);
      sum_run<kDim>(runs, u, width, g);
      update_row<Optimizer, kDim>(optimizer, target, rounding, u, g, w);
    }
  }
}

template <class Optimizer>
void update_any_width(const double* hyper, const Target& target, const Runs<float>& runs, const Rounding& rounding) {
  const Optimizer optimizer(hyper);
#define CALL(kDim) update<Optimizer, kDim>(optimizer, target, runs, rounding)
  HOTROWS_FOR_WIDTH(target.layout.dim, CALL)
#undef CALL
}

double unit(uint64_t bits) { return static_cast<double>(bits >> 40) * 0x1p-24; }

}  // namespace

// scratch: [U, D].
HOTROWS_API void hotrows_pool(const uint8_t* records, const int64_t* layout_ints, const int64_t* slots,
                              int64_t num_rows, const int32_t* inverse, int64_t num_ids,
                              const int32_t* bag_starts, const float* weights, int64_t num_bags,
                              float* scratch, float* out) {
  Layout layout;
  std::memcpy(&layout, layout_ints, sizeof layout);
  if (kChecks) layout.check_all();
  CHECK(are_within(inverse, num_ids, 0, num_rows), num_ids, num_rows);
  CHECK(!bag_starts || (bag_starts[0] == 0 && bag_starts[num_bags] == num_ids), num_bags, num_ids);
  CHECK(bag_starts ? never_falls(bag_starts, num_bags + 1) : num_bags == num_ids, num_bags, num_ids);
#define CALL(kDim)                                          \
  collect<kDim>(records, layout, slots, num_rows, scratch); \
  pool<kDim>(scratch, layout.dim, inverse, num_ids, bag_starts, weights, num_bags, out)
  HOTROWS_FOR_WIDTH(layout.dim, CALL)
#undef CALL
}

HOTROWS_API void hotrows_sum_gradients(const float* grad, int64_t dim, const int32_t* order, const int32_t* starts,
                                       int64_t num_rows, const int32_t* bags, const float* weights, float* out) {
  const Runs<float> runs{order, starts, bags, weights, grad, num_rows, starts[num_rows]};
#define CALL(kDim) sum_gradients<kDim>(runs, dim, out)
  HOTROWS_FOR_WIDTH(dim, CALL)
#undef CALL
}

// kind: a RowOptimizer.
HOTROWS_API void hotrows_update(uint8_t* records, const int64_t* layout_ints, const int64_t* slots,
                                const int64_t* rows, int64_t num_rows, const int32_t* order,
                                const int32_t* starts, const int32_t* bags, const float* weights,
                                const float* grad, int64_t kind, const double* hyper, int64_t step,
                                const int64_t* first_rows, const int64_t* pieces, int64_t num_pieces,
                                const float* decay, const float* mean_squares) {
  Target target{records, {}, slots, rows, decay, mean_squares};
  std::memcpy(&target.layout, layout_ints, sizeof target.layout);
  const Runs<float> runs{order, starts, bags, weights, grad, num_rows, starts[num_rows]};
  const Rounding rounding{{first_rows, reinterpret_cast<const Piece*>(pieces), num_pieces}, step};
  CHECK(kind >= 0 && kind <= static_cast<int64_t>(RowOptimizer::ftrl), kind);
  switch (static_cast<RowOptimizer>(kind)) {
    case RowOptimizer::sgd: update_any_width<Sgd>(hyper, target, runs, rounding); break;
    case RowOptimizer::adagrad: update_any_width<Adagrad>(hyper, target, runs, rounding); break;
    case RowOptimizer::rowwise_adagrad: update_any_width<RowWiseAdagrad>(hyper, target, runs, rounding); break;
    case RowOptimizer::adam: update_any_width<Adam>(hyper, target, runs, rounding); break;
    case RowOptimizer::ftrl: update_any_width<Ftrl>(hyper, target, runs, rounding); break;
  }
}

// Record n gets the first value of row rows[n] of a store made of pieces of tables, end to end.
// kind: an Initializer.
HOTROWS_API void hotrows_initialize(uint8_t* records, const int64_t* layout_ints, const int64_t* rows,
                                    int64_t num_records, const int64_t* first_rows, const int64_t* pieces,
                                    int64_t num_pieces, int64_t kind, double scale, const float* state) {
  Layout layout;
  std::memcpy(&layout, layout_ints, sizeof layout);
  const auto initializer = static_cast<Initializer>(kind);
  if (kChecks) layout.check_all();
  CHECK(kind >= 0 && kind <= static_cast<int64_t>(Initializer::normal), kind);
  constexpr double kTwoPi = 6.283185307179586;
  const Pieces tables{first_rows, reinterpret_cast<const Piece*>(pieces), num_pieces};
  // Few rows are made beside training, on a thread of their own: a second team would be in its way.
#pragma omp parallel if (num_records > 1 << 16)
  {
    std::vector<float> weights(layout.dim);
#pragma omp for schedule(static)
    for (int64_t k = 0; k < num_records; ++k) {
      uint8_t* record = records + k * layout.stride;
      const uint64_t row = tables.row_key(rows[k]);
      const int64_t first_column = tables.of(rows[k]).first_column;
      for (int64_t d = 0; d < layout.dim; ++d) {
        const int64_t c = first_column + d;
        double w = scale;
        if (initializer == Initializer::uniform) w = 2 * scale * unit(random_bits(row, c)) - scale;
        if (initializer == Initializer::normal)
          w = scale * std::sqrt(-2 * std::log(1 - unit(random_bits(row, 2 * c)))) *
              std::cos(kTwoPi * unit(random_bits(row, 2 * c + 1)));
        weights[d] = static_cast<float>(w);
      }
      std::memset(record + layout.weight_bytes(), 0, layout.state_offset - layout.weight_bytes());
      write_nearest(record, layout, weights.data());
      std::memcpy(record + layout.state_offset, state, layout.state_width * 4);
      if (layout.step_offset >= 0) std::memset(record + layout.step_offset, 0, 4);
    }
  }
}

// target[target_rows[n]] = source[source_rows[n]], `size` bytes each; null rows stand for 0, 1, 2, ...
// One thread: rows move beside training.
HOTROWS_API void hotrows_copy_rows(const uint8_t* source, int64_t source_stride, const int64_t* source_rows,
                                   uint8_t* target, int64_t target_stride, const int64_t* target_rows,
                                   int64_t num_rows, int64_t size) {
  const auto from = [=](int64_t n) { return source + (source_rows ? source_rows[n] : n) * source_stride; };
  const auto to = [=](int64_t n) { return target + (target_rows ? target_rows[n] : n) * target_stride; };
  CHECK(size >= 0 && size <= target_stride && size <= source_stride, size, source_stride, target_stride);
  CHECK(!source_rows || are_within(source_rows, num_rows, 0, INT64_MAX / source_stride), num_rows);
  CHECK(!target_rows || are_within(target_rows, num_rows, 0, INT64_MAX / target_stride), num_rows);
  for (int64_t n = 0; n < num_rows; ++n) {
    if (n + kAhead < num_rows) {
      if (source_rows) prefetch_bytes<false>(from(n + kAhead), size);
      if (target_rows) prefetch_bytes<true>(to(n + kAhead), size);
    }
    std::memcpy(to(n), from(n), static_cast<size_t>(size));
  }
}
