// Rows that fall behind a dense optimizer catch up with it; the rows of a batch are updated, and looked
// up: over several tables in one call.
//
// A dense optimizer moves every row at every step: by moments that fade, by weight decay, by L2 terms.
// Here each row keeps the number of steps that it has been through (`last`), and makes up for the others
// when it is next read. Rows that catch up are sorted by the step they begin with, and their elements
// stand side by side:
//
//   lanes     | row 7       | row 2       | row 9       |
//   step 40   | w m v       |             |             |    those that have begun come first: a phase
//   step 41   | w m v       | w m v       | w m v       |    keeps what it did to a prefix
//
// Work is split by rows; sums of squares are added block by block in the order of rows. So nothing depends on
// the number of threads.
#include <map>
#include <memory>
#include <tuple>

#include "deferred_rows.h"
#include "replay.h"

namespace {

using namespace hotrows;

constexpr int64_t kRowsOfBlock = 128;  // of an update or a read: the unit of work, and of a sum of squares
constexpr int64_t kSweepRows = 1024;   // of a sweep, likewise: sorted at once
constexpr int64_t kChunk = 1024;       // elements that are replayed from the first-level cache
constexpr int64_t kSmall = 1 << 15;    // elements (times steps) below which a team of threads does not pay

// ---- catching up ----------------------------------------------------------------------------------

struct Behind {
  int64_t row, start;
};

// Room for the elements of one chunk, end to end, whatever the stride of their rows.
template <class T>
struct Scratch {
  explicit Scratch(int64_t dim) {
    const int64_t size = (std::max(kChunk, dim) + kGroup<T> - 1) / kGroup<T> * kGroup<T>;
    for (auto& part : parts) part.resize(static_cast<size_t>(size));
  }
  std::vector<T> parts[3];
};

inline int64_t rows_of_chunk(int64_t dim) { return std::max<int64_t>(1, kChunk / dim); }

// rows: of one chunk, sorted by start.
template <class T, class P>
void replay_chunk(const P& path, int64_t now, const Behind* rows, int64_t num_rows, int64_t dim, T* const parts[3]) {
  CHECK(std::is_sorted(rows, rows + num_rows, [](const Behind& a, const Behind& b) { return a.start < b.start; }));
  CHECK(rows[num_rows - 1].start < now, rows[num_rows - 1].start, now);
  T copies[3][kGroup<T>];
  for (int64_t e = 0; e < num_rows * dim; e += kGroup<T>) {
    const Elements<T> group{parts[0] + e, parts[1] + e, parts[2] + e};
    const int64_t end = std::min(num_rows, (e + kGroup<T> + dim - 1) / dim);
    int64_t at = rows[e / dim].start, begun = e / dim;
    CHECK(begun < end && (end - begun - 2) * dim < kGroup<T>, begun, end, dim);
    while (true) {
      while (begun < end && rows[begun].start <= at) ++begun;
      if (begun == end) break;
      CHECK(begun * dim > e && begun * dim - e < kGroup<T>, begun, dim, e);
      for (int k = 0; k < 3; ++k) std::memcpy(copies[k], parts[k] + e, sizeof copies[k]);
      path.replay({copies[0], copies[1], copies[2]}, at, rows[begun].start);
      for (int k = 0; k < 3; ++k) std::copy(copies[k], copies[k] + (begun * dim - e), parts[k] + e);
      at = rows[begun].start;
    }
    path.replay(group, at, now);
  }
}

// Rows of one target, between its memory and `parts`, end to end. kDim: their width, or 0: `dim` says it.
template <int kDim, class T>
void gather(const Target& target, const Behind* rows, int64_t num_rows, int64_t dim, T* const parts[3]) {
  const int64_t width = kDim ? kDim : dim;
  const size_t size = static_cast<size_t>(width) * sizeof(T);
  for (int64_t n = 0; n < num_rows; ++n) {
    if (n + kAhead < num_rows) prefetch_row<T>(target, rows[n + kAhead].row, width);
    std::memcpy(parts[0] + n * width, target.weight<T>(rows[n].row), size);
    for (int s = 0; s < 2; ++s)
      if (const T* state = target.state<T>(s, rows[n].row)) std::memcpy(parts[1 + s] + n * width, state, size);
  }
}

template <int kDim, class T>
void scatter(const Target& target, const Behind* rows, int64_t num_rows, int64_t dim, T* const parts[3]) {
  const int64_t width = kDim ? kDim : dim;
  const size_t size = static_cast<size_t>(width) * sizeof(T);
  for (int64_t n = 0; n < num_rows; ++n) {
    std::memcpy(target.weight<T>(rows[n].row), parts[0] + n * width, size);
    for (int s = 0; s < 2; ++s)
      if (T* state = target.state<T>(s, rows[n].row)) std::memcpy(state, parts[1 + s] + n * width, size);
    target.last(rows[n].row) = static_cast<int32_t>(target.now);
  }
}

// Rows of one target, sorted by start; returns the change of the sum of their squares.
template <class T, class P>
double catch_up(const Target& target, const P& path, const Behind* rows, int64_t num_rows, int64_t dim, bool squares,
                Scratch<T>& scratch) {
  CHECK(num_rows > 0 && num_rows * dim <= static_cast<int64_t>(scratch.parts[0].size()), num_rows, dim);
  double change = 0;
  if (path.closed(rows[0].start)) {
    for (int64_t n = 0; n < num_rows; ++n) {
      if (n + kAhead < num_rows) prefetch_row<T>(target, rows[n + kAhead].row, dim);
      T* w = target.weight<T>(rows[n].row);
      if (squares) change -= sum_of_squares(w, dim);
      path.close(rows[n].start, w, target.state<T>(0, rows[n].row), dim);
      if (squares) change += sum_of_squares(w, dim);
      target.last(rows[n].row) = static_cast<int32_t>(target.now);
    }
    return change;
  }
  T* const parts[3] = {scratch.parts[0].data(), scratch.parts[1].data(), scratch.parts[2].data()};
#define CALL(kDim) gather<kDim>(target, rows, num_rows, dim, parts)
  HOTROWS_FOR_WIDTH(dim, CALL)
#undef CALL
  const int64_t used = num_rows * dim, whole = (used + kGroup<T> - 1) / kGroup<T> * kGroup<T>;
  for (int k = 0; k < 3; ++k) std::fill(parts[k] + used, parts[k] + whole, T(0));
  for (int64_t n = 0; squares && n < num_rows; ++n) change -= sum_of_squares(parts[0] + n * dim, dim);
  replay_chunk<T>(path, target.now, rows, num_rows, dim, parts);
  for (int64_t n = 0; squares && n < num_rows; ++n) change += sum_of_squares(parts[0] + n * dim, dim);
#define CALL(kDim) scatter<kDim>(target, rows, num_rows, dim, parts)
  HOTROWS_FOR_WIDTH(dim, CALL)
#undef CALL
  return change;
}

// By start, equal ones in the order they came.
void sort_by_start(std::vector<Behind>& rows, int64_t lowest, int64_t now) {
  const int64_t span = now - lowest, count = static_cast<int64_t>(rows.size());
  if (std::all_of(rows.begin(), rows.end(), [&](const Behind& r) { return r.start == rows[0].start; })) return;
  if (span > 4 * count) {
    std::stable_sort(rows.begin(), rows.end(), [](const Behind& a, const Behind& b) { return a.start < b.start; });
    return;
  }
  std::vector<int64_t> places(static_cast<size_t>(span) + 1);
  for (const Behind& r : rows) {
    CHECK(r.start >= lowest && r.start < now, r.row, r.start, lowest, now);
    ++places[r.start - lowest + 1];
  }
  for (int64_t s = 0; s < span; ++s) places[s + 1] += places[s];
  std::vector<Behind> sorted(rows.size());
  CHECK(places[span] == count, places[span], count);
  for (const Behind& r : rows) sorted[places[r.start - lowest]++] = r;
  rows.swap(sorted);
}

// The paths of targets; those with the same numbers share one.
template <class P>
struct Paths {
  explicit Paths(int64_t num_targets) : index(num_targets, -1) {}

  struct Wanted {
    Numbers numbers;
    int64_t begin, now;
  };
  std::vector<int64_t> index;
  std::vector<Wanted> wanted;
  std::vector<std::unique_ptr<P>> made;
  std::map<std::tuple<const void*, int64_t, int64_t>, int64_t> known;

  void want(int64_t t, const Target& target, int64_t begin) {
    const auto [at, is_new] = known.try_emplace({target.steps, target.first, target.now}, wanted.size());
    if (is_new) wanted.push_back({target.steps - target.first, begin, target.now});
    Wanted& path = wanted[at->second];
    path.begin = std::min(path.begin, begin);
    CHECK(path.begin >= target.first && path.begin < path.now, t, path.begin, target.first, path.now);
    index[t] = at->second;
  }
  void make() {
    made.resize(wanted.size());
#pragma omp parallel for schedule(dynamic) if (wanted.size() > 16)
    for (size_t k = 0; k < wanted.size(); ++k)
      made[k] = std::make_unique<P>(wanted[k].numbers, wanted[k].begin, wanted[k].now);
  }
  const P& operator[](int64_t t) const {
    CHECK(index[t] >= 0 && index[t] < static_cast<int64_t>(made.size()), t, index[t], made.size());
    return *made[index[t]];
  }
};

template <class T, class P>
void catch_up(const Rows& rows, int64_t dim, double* squares) {
  const int64_t num_targets = rows.num_targets;
  if (kChecks) rows.check_all(dim * static_cast<int64_t>(sizeof(T)));
  std::vector<std::vector<Behind>> behind(num_targets);
  std::vector<int64_t> lowest(num_targets);
#pragma omp parallel for schedule(dynamic) if (rows.end() - rows.begin() > kSmall / 8)
  for (int64_t t = 0; t < num_targets; ++t) {
    const Target& target = rows.targets[t];
    lowest[t] = target.now;
    for (int64_t u = rows.bounds[t]; u < rows.bounds[t + 1]; ++u) {
      if (u + kAhead < rows.bounds[t + 1]) prefetch(&target.last(rows.slots[u + kAhead]));
      const int64_t start = target.start(rows.slots[u]);
      if (start < target.now) behind[t].push_back({rows.slots[u], start});
      lowest[t] = std::min(lowest[t], start);
    }
    sort_by_start(behind[t], lowest[t], target.now);
  }
  Paths<P> paths(num_targets);
  int64_t work = 0;
  for (int64_t t = 0; t < num_targets; ++t) {
    if (!behind[t].empty()) paths.want(t, rows.targets[t], lowest[t]);
    work += static_cast<int64_t>(behind[t].size()) * (rows.targets[t].now - lowest[t]) * dim;
  }
  if (work == 0) return;
  paths.make();
  const std::vector<Block> chunks = blocks_of(num_targets, rows_of_chunk(dim), [&](int64_t t) {
    return std::pair<int64_t, int64_t>(0, behind[t].size());
  });
  std::vector<double> changes(chunks.size());
#pragma omp parallel if (work > kSmall)
  {
    Scratch<T> scratch(dim);
#pragma omp for schedule(dynamic)
    for (size_t c = 0; c < chunks.size(); ++c) {
      const Block& chunk = chunks[c];
      changes[c] = catch_up<T>(rows.targets[chunk.target], paths[chunk.target], behind[chunk.target].data() + chunk.begin,
                               chunk.end - chunk.begin, dim, squares != nullptr, scratch);
    }
  }
  if (kChecks) rows.check_steps();
  add_changes(chunks, changes, squares);
}

template <class T, class P>
void catch_up_all(const Target* targets, int64_t num_targets, int64_t dim, double* squares) {
  Paths<P> paths(num_targets);
  int64_t work = 0;
  for (int64_t t = 0; t < num_targets; ++t) {
    if (kChecks) targets[t].check_all(dim * static_cast<int64_t>(sizeof(T)));
    if (targets[t].first >= targets[t].now) continue;
    paths.want(t, targets[t], targets[t].first);
    work += targets[t].num_rows * dim;
  }
  paths.make();
  const std::vector<Block> blocks = blocks_of(num_targets, kSweepRows, [&](int64_t t) {
    return std::pair<int64_t, int64_t>(0, targets[t].first < targets[t].now ? targets[t].num_rows : 0);
  });
  std::vector<double> changes(blocks.size());
#pragma omp parallel if (work > kSmall)
  {
    Scratch<T> scratch(dim);
    std::vector<Behind> behind;
#pragma omp for schedule(dynamic)
    for (size_t b = 0; b < blocks.size(); ++b) {
      const Target& target = targets[blocks[b].target];
      const P& path = paths[blocks[b].target];
      behind.clear();
      for (int64_t row = blocks[b].begin; row < blocks[b].end; ++row) {
        const int64_t start = target.start(row);
        if (start < target.now) behind.push_back({row, start});
      }
      if (behind.empty()) continue;
      if (!path.closed(target.first)) sort_by_start(behind, target.first, target.now);
      const int64_t count = static_cast<int64_t>(behind.size()), size = rows_of_chunk(dim);
      for (int64_t at = 0; at < count; at += size)
        changes[b] += catch_up<T>(target, path, behind.data() + at, std::min(size, count - at), dim, squares != nullptr, scratch);
    }
  }
  for (int64_t t = 0; kChecks && t < num_targets; ++t)
    for (int64_t row = 0; row < targets[t].num_rows; ++row) CHECK(targets[t].start(row) == targets[t].now, t, row);
  add_changes(blocks, changes, squares);
}

template <class T>
void squares_of(const Target* targets, int64_t num_targets, int64_t dim, double* squares) {
  const std::vector<Block> blocks = blocks_of(num_targets, kSweepRows, [&](int64_t t) {
    return std::pair<int64_t, int64_t>(0, targets[t].num_rows);
  });
  std::vector<double> sums(blocks.size());
#pragma omp parallel for schedule(static) if (static_cast<int64_t>(blocks.size()) * kSweepRows * dim > kSmall)
  for (size_t b = 0; b < blocks.size(); ++b) {
    const Target& target = targets[blocks[b].target];
    if (target.weights_stride == dim * static_cast<int64_t>(sizeof(T))) {
      sums[b] = sum_of_squares(target.weight<T>(blocks[b].begin), (blocks[b].end - blocks[b].begin) * dim);
      continue;
    }
    for (int64_t row = blocks[b].begin; row < blocks[b].end; ++row) sums[b] += sum_of_squares(target.weight<T>(row), dim);
  }
  add_changes(blocks, sums, squares);
}

template <class T>
void products_of(const Rows& rows, int64_t dim, const T* sums, double* squares, double* with_weights) {
  if (kChecks) rows.check_all(dim * static_cast<int64_t>(sizeof(T)));
  const std::vector<Block> blocks = blocks_of(rows.num_targets, kRowsOfBlock, [&](int64_t t) {
    return std::pair<int64_t, int64_t>(rows.bounds[t], rows.bounds[t + 1]);
  });
  std::vector<double> of_sums(blocks.size()), of_weights(blocks.size());
#pragma omp parallel for schedule(static) if ((rows.end() - rows.begin()) * dim > kSmall)
  for (size_t b = 0; b < blocks.size(); ++b) {
    const Target& target = rows.targets[blocks[b].target];
    const int64_t end = rows.bounds[blocks[b].target + 1];
    for (int64_t u = blocks[b].begin; u < blocks[b].end; ++u) {
      if (u + kAhead < end) prefetch_bytes<false>(target.weight<T>(rows.slots[u + kAhead]), dim * sizeof(T));
      of_sums[b] += sum_of_squares(sums + u * dim, dim);
      of_weights[b] += sum_of_products(sums + u * dim, target.weight<T>(rows.slots[u]), dim);
    }
  }
  add_changes(blocks, of_sums, squares);
  add_changes(blocks, of_weights, with_weights);
}

// ---- the update of a batch --------------------------------------------------------------------------

template <class Rule, int kDim, class T>
void update(const Rows& rows, int64_t dim, const Runs<T>& runs, const double* scales, double* squares) {
  const int64_t width = kDim ? kDim : dim;
  if (kChecks) runs.check_all();
  const std::vector<Block> blocks = blocks_of(rows.num_targets, kRowsOfBlock, [&](int64_t t) {
    return std::pair<int64_t, int64_t>(rows.bounds[t], rows.bounds[t + 1]);
  });
  std::vector<double> changes(blocks.size());
#pragma omp parallel if ((runs.num_ids + rows.end()) * dim > kSmall)
  {
    std::vector<T> sums(width);
#pragma omp for schedule(dynamic)
    for (size_t b = 0; b < blocks.size(); ++b) {
      const Block& block = blocks[b];
      const Target& target = rows.targets[block.target];
      const Rule rule(target.steps[target.now - target.first]);
      const T scale = static_cast<T>(scales[block.target]);
      const int64_t end = rows.bounds[block.target + 1];
      T inline_sum[kDim ? kDim : 1];
      T* g = kDim ? inline_sum : sums.data();
      double change = 0;
      for (int64_t u = block.begin; u < block.end; ++u) {
        if (u + kAhead < end) prefetch_row<T>(target, rows.slots[u + kAhead], width);
        sum_run<kDim>(runs, u, width, g);
        for (int64_t d = 0; d < width; ++d) g[d] *= scale;
        const int64_t row = rows.slots[u];
        CHECK(target.start(row) == target.now, row, target.last(row), target.now);  // it has caught up
        T* w = target.weight<T>(row);
        if (squares) change -= sum_of_squares(w, width);
        rule.template apply<kDim>(w, target.state<T>(0, row), target.state<T>(1, row), g, width);
        if (squares) change += sum_of_squares(w, width);
        target.last(row) = static_cast<int32_t>(target.now + 1);
      }
      changes[b] = change;
    }
  }
  if (kChecks) rows.check_steps();
  add_changes(blocks, changes, squares);
}

// ---- the lookup ---------------------------------------------------------------------------------------

template <int kDim, class T>
void collect(const Rows& rows, int64_t dim, T* __restrict out) {
  const int64_t width = kDim ? kDim : dim, size = width * static_cast<int64_t>(sizeof(T));
  const std::vector<Block> blocks = blocks_of(rows.num_targets, kRowsOfBlock, [&](int64_t t) {
    return std::pair<int64_t, int64_t>(rows.bounds[t], rows.bounds[t + 1]);
  });
#pragma omp parallel for schedule(static) if (rows.end() * dim > kSmall)
  for (size_t b = 0; b < blocks.size(); ++b) {
    const Target& target = rows.targets[blocks[b].target];
    const int64_t end = rows.bounds[blocks[b].target + 1];
    for (int64_t u = blocks[b].begin; u < blocks[b].end; ++u) {
      if (u + kAhead < end) prefetch_bytes<false>(target.weight<T>(rows.slots[u + kAhead]), size);
      std::memcpy(out + u * width, target.weight<T>(rows.slots[u]), static_cast<size_t>(size));
    }
  }
}

template <int kDim, class T>
void pool(const T* __restrict rows, int64_t dim, const int32_t* inverse, int64_t num_ids, const int32_t* bag_starts,
          const T* weights, int64_t num_bags, T* __restrict out) {
  const int64_t width = kDim ? kDim : dim;
#pragma omp parallel for schedule(static) if ((num_ids + num_bags) * dim > kSmall)
  for (int64_t m = 0; m < num_bags; ++m) {
    const int64_t begin = bag_starts ? bag_starts[m] : m, end = bag_starts ? bag_starts[m + 1] : m + 1;
    T* vector = out + m * width;
    if (!bag_starts && !weights) {
      if (begin + kAhead < num_ids) prefetch(rows + inverse[begin + kAhead] * width);
      std::memcpy(vector, rows + inverse[begin] * width, static_cast<size_t>(width) * sizeof(T));
      continue;
    }
    std::fill(vector, vector + width, T(0));
    for (int64_t n = begin; n < end; ++n) {
      if (n + kAhead < num_ids) prefetch(rows + inverse[n + kAhead] * width);
      const T* row = rows + inverse[n] * width;
      const T scale = weights ? weights[n] : T(1);
      for (int64_t d = 0; d < width; ++d) vector[d] += scale * row[d];
    }
  }
}

// ---- which rule, in which precision ---------------------------------------------------------------------

// call(Rule<T>, its path), as types that are never made.
template <class T, class Call>
void for_kind(int kind, Call call) {
  CHECK(kind >= 0 && kind <= static_cast<int>(DeferredRule::adam), kind);
  switch (static_cast<DeferredRule>(kind)) {
    case DeferredRule::sgd: return call(static_cast<Sgd<T>*>(nullptr), static_cast<SgdPath<T>*>(nullptr));
    case DeferredRule::adagrad: return call(static_cast<Adagrad<T>*>(nullptr), static_cast<Path<Adagrad<T>, T>*>(nullptr));
    case DeferredRule::rmsprop: return call(static_cast<RmsProp<T>*>(nullptr), static_cast<Path<RmsProp<T>, T>*>(nullptr));
    case DeferredRule::adam: return call(static_cast<Adam<T>*>(nullptr), static_cast<AdamPath<T>*>(nullptr));
  }
}

template <class T>
void catch_up_any(int kind, const Rows& rows, int64_t dim, double* squares) {
  for_kind<T>(kind, [&](auto, auto path) {
    catch_up<T, std::remove_pointer_t<decltype(path)>>(rows, dim, squares);
  });
}

template <class T>
void catch_up_all_any(int kind, const Target* targets, int64_t num_targets, int64_t dim, double* squares) {
  for_kind<T>(kind, [&](auto, auto path) {
    catch_up_all<T, std::remove_pointer_t<decltype(path)>>(targets, num_targets, dim, squares);
  });
}

template <class T>
void update_any(int kind, const Rows& rows, int64_t dim, const Runs<T>& runs, const double* scales, double* squares) {
  for_kind<T>(kind, [&](auto rule, auto path) {
    using Rule = std::remove_pointer_t<decltype(rule)>;
    catch_up<T, std::remove_pointer_t<decltype(path)>>(rows, dim, squares);
#define CALL(kDim) update<Rule, kDim>(rows, dim, runs, scales, squares)
    HOTROWS_FOR_WIDTH(dim, CALL)
#undef CALL
  });
}

template <class T>
void look_up(const Rows& rows, int64_t dim, const int32_t* inverse, int64_t num_ids, const int32_t* bag_starts,
             const T* weights, int64_t num_bags, T* scratch, T* out) {
  if (kChecks) rows.check_all(dim * static_cast<int64_t>(sizeof(T)));
  CHECK(are_within(inverse, num_ids, rows.begin(), rows.end()), num_ids, rows.begin(), rows.end());
  CHECK(bag_starts ? never_falls(bag_starts, num_bags + 1) : num_bags == num_ids, num_bags, num_ids);
  CHECK(!bag_starts || (bag_starts[0] == 0 && bag_starts[num_bags] == num_ids), num_bags, num_ids);
#define CALL(kDim)                   \
  collect<kDim>(rows, dim, scratch); \
  pool<kDim>(static_cast<const T*>(scratch), dim, inverse, num_ids, bag_starts, weights, num_bags, out)
  HOTROWS_FOR_WIDTH(dim, CALL)
#undef CALL
}

}  // namespace

// targets: [T, 12] as struct Target. kind: a DeferredRule. itemsize: 4 float, 8 double.
// squares: [T], or null.
HOTROWS_API void hotrows_deferred_catch_up(int kind, int64_t itemsize, int64_t dim, const int64_t* targets,
                                           int64_t num_targets, const int64_t* slots, const int64_t* bounds,
                                           double* squares) {
  const Rows rows{reinterpret_cast<const Target*>(targets), num_targets, slots, bounds};
  itemsize == 4 ? catch_up_any<float>(kind, rows, dim, squares) : catch_up_any<double>(kind, rows, dim, squares);
}

HOTROWS_API void hotrows_deferred_catch_up_all(int kind, int64_t itemsize, int64_t dim, const int64_t* targets,
                                               int64_t num_targets, double* squares) {
  const Target* rows = reinterpret_cast<const Target*>(targets);
  itemsize == 4 ? catch_up_all_any<float>(kind, rows, num_targets, dim, squares)
                : catch_up_all_any<double>(kind, rows, num_targets, dim, squares);
}

// squares: [T], to which the sum of each target's squared weights is added.
HOTROWS_API void hotrows_deferred_squares(int64_t itemsize, int64_t dim, const int64_t* targets, int64_t num_targets,
                                          double* squares) {
  const Target* rows = reinterpret_cast<const Target*>(targets);
  itemsize == 4 ? squares_of<float>(rows, num_targets, dim, squares) : squares_of<double>(rows, num_targets, dim, squares);
}

// sums: [U, D] of the tables' precision. squares, with_weights: [T], to which the sums of sums * sums and of
// sums * weights are added.
HOTROWS_API void hotrows_deferred_products(int64_t itemsize, int64_t dim, const int64_t* targets, int64_t num_targets,
                                           const int64_t* slots, const int64_t* bounds, const void* sums,
                                           double* squares, double* with_weights) {
  const Rows rows{reinterpret_cast<const Target*>(targets), num_targets, slots, bounds};
  itemsize == 4 ? products_of<float>(rows, dim, static_cast<const float*>(sums), squares, with_weights)
                : products_of<double>(rows, dim, static_cast<const double*>(sums), squares, with_weights);
}

// weights, grad: of the tables' precision.
HOTROWS_API void hotrows_deferred_update(int kind, int64_t itemsize, int64_t dim, const int64_t* targets,
                                         int64_t num_targets, const int64_t* slots, const int64_t* bounds,
                                         const int32_t* order, const int32_t* starts, const int32_t* bags,
                                         const void* weights, const void* grad, const double* scales, double* squares) {
  const Rows rows{reinterpret_cast<const Target*>(targets), num_targets, slots, bounds};
  const auto runs = [&](auto of) {
    using T = decltype(of);
    return Runs<T>{
        order, starts, bags, static_cast<const T*>(weights), static_cast<const T*>(grad), rows.end(), starts[rows.end()]};
  };
  itemsize == 4 ? update_any<float>(kind, rows, dim, runs(float{}), scales, squares)
                : update_any<double>(kind, rows, dim, runs(double{}), scales, squares);
}

// scratch: [U, D].
HOTROWS_API void hotrows_deferred_look_up(int64_t itemsize, int64_t dim, const int64_t* targets, int64_t num_targets,
                                          const int64_t* slots, const int64_t* bounds, const int32_t* inverse,
                                          int64_t num_ids, const int32_t* bag_starts, const void* weights,
                                          int64_t num_bags, void* scratch, void* out) {
  const Rows rows{reinterpret_cast<const Target*>(targets), num_targets, slots, bounds};
  const auto run = [&](auto of) {
    using T = decltype(of);
    look_up<T>(rows, dim, inverse, num_ids, bag_starts, static_cast<const T*>(weights), num_bags,
               static_cast<T*>(scratch), static_cast<T*>(out));
  };
  itemsize == 4 ? run(float{}) : run(double{});
}
