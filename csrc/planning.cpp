// What a plan needs: ids to rows in the order of the lookup, distinct rows, and runs of equal rows.
// One thread each: they run beside training, on the planner's.
#include <map>
#include <memory>

#include "codes.h"
#include "core.h"

namespace {

using hotrows::are_within;
using hotrows::kChecks;
using hotrows::never_falls;
using hotrows::rises;

int bits_of(uint64_t x) { return x == 0 ? 0 : 64 - __builtin_clzll(x); }

using Keys = std::unique_ptr<uint64_t[]>;

Keys uninitialized(int64_t n) { return Keys(new uint64_t[n]); }

constexpr int kMaxDigit = 11;

// Sorts n keys by the bits [low, low + width), keeping the order of equals; least digit first. Returns where
// they are then: in `keys`, or in `spare`, which has room for n.
uint64_t* radix_sort(uint64_t* keys, uint64_t* spare, int64_t n, int low, int width) {
  const int passes = (width + kMaxDigit - 1) / kMaxDigit;
  if (passes == 0 || n < 2) return keys;
  const int digit = (width + passes - 1) / passes;
  const size_t buckets = size_t{1} << digit;
  const uint64_t mask = buckets - 1;
  CHECK(low >= 0 && width <= 64 - low && n <= UINT32_MAX, low, width, n);

  std::vector<uint32_t> counts(passes * buckets);
  for (int64_t i = 0; i < n; ++i)
    for (int p = 0; p < passes; ++p) ++counts[p * buckets + ((keys[i] >> (low + p * digit)) & mask)];

  for (int p = 0; p < passes; ++p) {
    uint32_t* begin = &counts[p * buckets];
    uint32_t total = 0;
    for (size_t b = 0; b < buckets; ++b) {
      const uint32_t count = begin[b];
      begin[b] = total;
      total += count;
    }
    const int shift = low + p * digit;
    CHECK(total == n, p, total, n);
    for (int64_t i = 0; i < n; ++i) spare[begin[(keys[i] >> shift) & mask]++] = keys[i];
    CHECK(begin[buckets - 1] == n, p, n);
    std::swap(keys, spare);
  }
  return keys;
}

// Rows too wide to share 64 bits with their position.
void sort_by_comparison(const int64_t* rows, int64_t n, int32_t* order) {
  for (int64_t i = 0; i < n; ++i) order[i] = static_cast<int32_t>(i);
  std::stable_sort(order, order + n, [rows](int32_t a, int32_t b) { return rows[a] < rows[b]; });
}

// The runs of equal rows, added in ascending order, each with the place where it stands.
struct Runs {
  int64_t* distinct;
  int32_t *inverse, *order, *starts;
  int64_t num_rows = 0, num_distinct = 0;

  void add(int64_t row, int32_t place) {
    CHECK(num_distinct == 0 || row >= distinct[num_distinct - 1], row, distinct[num_distinct - 1]);
    CHECK(place >= 0, place);
    if (num_distinct == 0 || row != distinct[num_distinct - 1]) begin(row);
    order[num_rows++] = place;
    inverse[place] = static_cast<int32_t>(num_distinct - 1);
  }

  void begin(int64_t row) {
    CHECK(row >= 0 && (num_distinct == 0 || row > distinct[num_distinct - 1]), row);
    CHECK(num_distinct == 0 || num_rows > starts[num_distinct - 1], num_rows);  // no run is empty
    distinct[num_distinct] = row;
    starts[num_distinct++] = static_cast<int32_t>(num_rows);
  }

  // Adds n sorted keys: a row, from first_row on, above the bits of its place.
  void add_keys(const uint64_t* keys, int64_t n, int place_bits, int64_t first_row) {
    const uint64_t mask = (uint64_t{1} << place_bits) - 1;
    for (int64_t i = 0; i < n; ++i)
      add(first_row + static_cast<int64_t>(keys[i] >> place_bits), static_cast<int32_t>(keys[i] & mask));
  }

  int64_t end(int64_t num_ids) {
    CHECK(num_rows == num_ids && num_distinct <= num_ids, num_rows, num_distinct, num_ids);
    starts[num_distinct] = static_cast<int32_t>(num_rows);
    if (kChecks) check_all();
    return num_distinct;
  }

  // Each id is in one run, that of its row, in the order of the batch.
  void check_all() const {
    std::vector<bool> seen(static_cast<size_t>(num_rows));
    for (int64_t u = 0; u < num_distinct; ++u) {
      CHECK(rises(order + starts[u], starts[u + 1] - starts[u]), u, starts[u], starts[u + 1]);
      for (int64_t at = starts[u]; at < starts[u + 1]; ++at) {
        CHECK(order[at] >= 0 && order[at] < num_rows && !seen[order[at]], at, order[at]);
        CHECK(inverse[order[at]] == u, at, inverse[order[at]], u);
        seen[order[at]] = true;
      }
    }
  }
};

// Where the rows of a table are among ranks; see hotrows.engine.planning.sharding. The first `hot` ids are rows
// from first_hot on; the others are dealt over num_sharing ranks, and rank p numbers its own from
// first_owned[p] on.
struct Route {
  HOTROWS_ROUTE(HOTROWS_FIELD)
  int64_t num_ranks;
  const int64_t* first_owned;

  int64_t row(int64_t id) const {
    if (id < hot) return first_hot + id;
    const uint64_t j = static_cast<uint64_t>(id - hot), sharing = static_cast<uint64_t>(num_sharing);
    const uint64_t place = j / sharing;
    CHECK(id >= 0 && num_sharing > 0 && num_sharing <= num_ranks, id, num_sharing, num_ranks);
    CHECK(first_rank >= 0 && first_rank < num_ranks, first_rank, num_ranks);
    const uint64_t rank = (static_cast<uint64_t>(first_rank) + (j - place * sharing)) % static_cast<uint64_t>(num_ranks);
    return first_owned[rank] + static_cast<int64_t>(place);
  }
};

// Ids of a batch's k-th column to rows of a pack.
template <bool kRouted>
struct Rows {
  const int64_t *first_rows, *num_rows, *routes;  // routes: [K, 4 + P]; where not routed: id + first_rows[k]
  int64_t num_ranks;

  bool holds(int64_t k, int64_t id) const { return static_cast<uint64_t>(id) < static_cast<uint64_t>(num_rows[k]); }
  int64_t row(int64_t k, int64_t id) const {
    if (!holds(k, id)) return -1;
    if (!kRouted) return id + first_rows[k];
    const int64_t* r = routes + k * (4 + num_ranks);
    const int64_t row = Route{r[0], r[1], r[2], r[3], num_ranks, r + 4}.row(id);
    CHECK(row >= 0, k, id, row);
    return row;
  }
};

template <class Rows>
int64_t resolve_single(const int64_t* ids, int64_t batch_size, const int64_t* features, const Rows& of,
                       int64_t num_all, int64_t num_columns, int64_t* rows) {
  CHECK(num_columns >= 0 && num_columns <= num_all && batch_size >= 0, num_columns, num_all, batch_size);
  constexpr int64_t kBlock = 64;  // samples whose vectors' rows stay in the first-level cache
  int64_t bad = INT64_MAX;
  for (int64_t b0 = 0; b0 < batch_size; b0 += kBlock) {
    const int64_t b1 = std::min(b0 + kBlock, batch_size);
    for (int64_t k = 0; k < num_columns; ++k) {
      const int64_t* column = ids + features[k] * batch_size;
      for (int64_t b = b0; b < b1; ++b) {
        const int64_t n = b * num_columns + k;
        if (!of.holds(k, column[b])) bad = std::min(bad, n);
        rows[n] = of.row(k, column[b]);
      }
    }
  }
  int64_t n = num_columns * batch_size;
  for (int64_t k = num_columns; k < num_all; ++k) {
    const int64_t* column = ids + features[k] * batch_size;
    for (int64_t b = 0; b < batch_size; ++b, ++n) {
      if (!of.holds(k, column[b])) bad = std::min(bad, n);
      rows[n] = of.row(k, column[b]);
    }
  }
  CHECK(n == num_all * batch_size, n, num_all, batch_size);
  CHECK(are_within(rows, bad == INT64_MAX ? n : bad, 0, INT64_MAX), n, bad);
  return bad == INT64_MAX ? -1 : bad;
}

template <class Rows>
int64_t resolve_jagged(const int64_t* ids, const int64_t* offsets, int64_t batch_size, const int64_t* features,
                       const Rows& of, int64_t num_all, int64_t num_columns, int64_t* rows, int64_t* source,
                       int32_t* bag_starts) {
  int64_t n = 0, m = 0, bad = -1;
  const auto take = [&](int64_t k, int64_t from) {
    const int64_t id = ids[from];
    if (!of.holds(k, id) && bad < 0) bad = n;
    rows[n] = of.row(k, id);
    source[n++] = from;
  };
  for (int64_t b = 0; b < batch_size; ++b) {
    for (int64_t k = 0; k < num_columns; ++k) {
      bag_starts[m++] = static_cast<int32_t>(n);
      const int64_t* ends = offsets + features[k] * batch_size + b;
      CHECK(ends[0] <= ends[1], k, b, ends[0], ends[1]);
      for (int64_t from = ends[0]; from < ends[1]; ++from) take(k, from);
    }
  }
  for (int64_t k = num_columns; k < num_all; ++k) {
    const int64_t* ends = offsets + features[k] * batch_size;
    CHECK(never_falls(ends, batch_size + 1), k);
    for (int64_t from = ends[0]; from < ends[batch_size]; ++from) {
      bag_starts[m++] = static_cast<int32_t>(n);
      take(k, from);
    }
  }
  bag_starts[m] = static_cast<int32_t>(n);
  CHECK(n <= INT32_MAX && never_falls(bag_starts, m + 1), n, m);
  CHECK(bad >= 0 ? rows[bad] == -1 : are_within(rows, n, 0, INT64_MAX), n, bad);
  return bad;
}

// The columns of a batch that read one table.
struct TableColumns {
  int64_t first_row, num_rows, batch_size, num_columns;  // num_columns: of all tables
  std::vector<std::pair<int64_t, const int64_t*>> columns;  // places among these, and ids

  int64_t num_ids() const { return batch_size * static_cast<int64_t>(columns.size()); }

  // Visits ids in the order of their places.
  template <class Visit>
  void each(Visit visit) const {
    for (int64_t b = 0; b < batch_size; ++b)
      for (const auto& [k, ids] : columns) visit(ids[b], b * num_columns + k);
  }

  // The first place of an id that is none of the table.
  int64_t first_bad() const {
    int64_t first = INT64_MAX;
    for (const auto& [k, ids] : columns) {
      uint64_t highest = 0;
      for (int64_t b = 0; b < batch_size; ++b) highest = std::max(highest, static_cast<uint64_t>(ids[b]));
      if (highest < static_cast<uint64_t>(num_rows)) continue;
      const auto is_bad = [&](int64_t id) { return static_cast<uint64_t>(id) >= static_cast<uint64_t>(num_rows); };
      const int64_t b = std::find_if(ids, ids + batch_size, is_bad) - ids;
      if (b < batch_size) first = std::min(first, b * num_columns + k);
    }
    return first;
  }

  void add_to(Runs& runs, uint64_t* keys, uint64_t* spare, int place_bits) const {
    if (num_rows <= int64_t{1} << kMaxDigit) return count(runs);
    uint64_t* key = keys;
    each([&](int64_t id, int64_t place) {
      *key++ = static_cast<uint64_t>(id) << place_bits | static_cast<uint64_t>(place);
    });
    CHECK(key - keys == num_ids(), key - keys, num_ids());
    const int row_bits = bits_of(static_cast<uint64_t>(num_rows - 1));
    CHECK(row_bits + place_bits <= 64, row_bits, place_bits);
    runs.add_keys(radix_sort(keys, spare, num_ids(), place_bits, row_bits), num_ids(), place_bits, first_row);
  }

 private:
  // For few rows: an id leads to where it goes.
  void count(Runs& runs) const {
    struct Row {
      int32_t end, number;
    };
    std::vector<Row> rows(num_rows);
    each([&](int64_t id, int64_t) {
      CHECK(id >= 0 && id < num_rows, id, num_rows);
      ++rows[id].end;
    });
    for (int64_t id = 0; id < num_rows; ++id) {
      const int32_t count = rows[id].end;
      rows[id] = {static_cast<int32_t>(runs.num_rows), static_cast<int32_t>(runs.num_distinct)};
      if (count > 0) runs.begin(first_row + id);
      runs.num_rows += count;
    }
    each([&](int64_t id, int64_t place) {
      runs.order[rows[id].end++] = static_cast<int32_t>(place);
      runs.inverse[place] = rows[id].number;
    });
    CHECK(num_rows == 0 || rows[num_rows - 1].end == runs.num_rows, rows[num_rows - 1].end, runs.num_rows);
  }
};

}  // namespace

// Fills distinct [U], inverse [n], order [n], starts [U + 1]; returns U. Rows are not negative.
HOTROWS_API int64_t hotrows_unique(const int64_t* rows, int64_t n, int64_t* distinct, int32_t* inverse,
                                   int32_t* order, int32_t* starts) {
  CHECK(n >= 0 && n <= INT32_MAX && are_within(rows, n, 0, INT64_MAX), n);
  uint64_t all = 0;
  for (int64_t i = 0; i < n; ++i) all |= static_cast<uint64_t>(rows[i]);
  const int row_bits = bits_of(all), index_bits = bits_of(static_cast<uint64_t>(n));

  Runs runs{distinct, inverse, order, starts};
  if (row_bits + index_bits > 64) {
    sort_by_comparison(rows, n, order);
    for (int64_t i = 0; i < n; ++i) runs.add(rows[order[i]], order[i]);
    return runs.end(n);
  }
  const Keys keys = uninitialized(n), spare = uninitialized(n);
  for (int64_t i = 0; i < n; ++i)
    keys[i] = static_cast<uint64_t>(rows[i]) << index_bits | static_cast<uint64_t>(i);
  // The sorted keys still hold their rows: runs need no random read.
  runs.add_keys(radix_sort(keys.get(), spare.get(), n, index_bits, row_bits), n, index_bits, 0);
  return runs.end(n);
}

// `resolve_single` and `unique` in one, where there are no sequences and no ranks: the columns of each table are
// sorted alone, by fewer bits and in the processor's cache. num_rows: 2^32 at most. Returns U, or -1 - the first bad n.
HOTROWS_API int64_t hotrows_unique_of_columns(const int64_t* ids, int64_t batch_size, const int64_t* features,
                                              const int64_t* first_rows, const int64_t* num_rows, int64_t num_columns,
                                              int64_t* distinct, int32_t* inverse, int32_t* order, int32_t* starts) {
  std::map<int64_t, TableColumns> tables;
  for (int64_t k = 0; k < num_columns; ++k) {
    const TableColumns empty{first_rows[k], num_rows[k], batch_size, num_columns, {}};
    auto& table = tables.try_emplace(first_rows[k], empty).first->second;
    CHECK(table.num_rows == num_rows[k], k, table.num_rows, num_rows[k]);  // of one table
    auto& columns = table.columns;
    columns.emplace_back(k, ids + features[k] * batch_size);
  }
  int64_t bad = INT64_MAX, most = 0;
  for (const auto& [first_row, table] : tables) {
    bad = std::min(bad, table.first_bad());
    most = std::max(most, table.num_ids());
  }
  if (bad != INT64_MAX) return -1 - bad;
  Runs runs{distinct, inverse, order, starts};
  const Keys keys = uninitialized(most), spare = uninitialized(most);
  const int place_bits = bits_of(static_cast<uint64_t>(num_columns * batch_size));
  for (const auto& [first_row, table] : tables) table.add_to(runs, keys.get(), spare.get(), place_bits);
  return runs.end(num_columns * batch_size);
}

// One id per feature and sample: rows in the order of bags. Returns the first bad n, or -1.
HOTROWS_API int64_t hotrows_resolve_single(const int64_t* ids, int64_t batch_size, const int64_t* features,
                                           const int64_t* first_rows, const int64_t* num_rows,
                                           const int64_t* routes, int64_t num_ranks, int64_t num_all,
                                           int64_t num_columns, int64_t* rows) {
  if (routes)
    return resolve_single(ids, batch_size, features, Rows<true>{first_rows, num_rows, routes, num_ranks},
                          num_all, num_columns, rows);
  return resolve_single(ids, batch_size, features, Rows<false>{first_rows, num_rows, routes, num_ranks},
                        num_all, num_columns, rows);
}

// Any number of ids per bag. rows, source: [N']; bag_starts: [M + 1]. Returns the first bad n, or -1.
HOTROWS_API int64_t hotrows_resolve_jagged(const int64_t* ids, const int64_t* offsets, int64_t batch_size,
                                           const int64_t* features, const int64_t* first_rows,
                                           const int64_t* num_rows, const int64_t* routes, int64_t num_ranks,
                                           int64_t num_all, int64_t num_columns, int64_t* rows,
                                           int64_t* source, int32_t* bag_starts) {
  if (routes)
    return resolve_jagged(ids, offsets, batch_size, features,
                          Rows<true>{first_rows, num_rows, routes, num_ranks}, num_all, num_columns, rows,
                          source, bag_starts);
  return resolve_jagged(ids, offsets, batch_size, features,
                        Rows<false>{first_rows, num_rows, routes, num_ranks}, num_all, num_columns, rows,
                        source, bag_starts);
}
