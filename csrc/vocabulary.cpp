// Stored vocabularies: turning values into ids by their index (index.h), which may be a mapped file
// larger than memory.
#include "index.h"
#include "pages.h"

namespace hotrows {
namespace {

constexpr int64_t kBlock = 64;        // values whose slots are fetched together
constexpr int64_t kRange = 64 << 8;   // values that a thread takes at a time

constexpr int64_t kAhead = 1 << 16;   // values of a request at most, whose slots are read at once

constexpr int64_t kMissing = 1, kFirstUnknown = 2;

struct Lookup {
  Key key;
  uint64_t slot;
  uint64_t found;  // rank_and_length of the slot
};

// Goes on from a slot that has the hash of a longer value, to the one that holds the value itself.
void check(const StoredValues& values, Lookup* lookup) {
  while (lookup->found != 0 && !same(values.value(lookup->found >> 8), lookup->key.field)) {
    lookup->slot = values.find(lookup->key, lookup->slot + 1);
    lookup->found = values.rank_and_length(lookup->slot);
  }
}

int64_t unknown_id(const StoredValues& values, uint64_t hash) {
  CHECK(values.num_unknown >= 0, values.num_unknown);
  if (values.num_unknown == 0) return -1;
  return kFirstUnknown + (values.num_unknown == 1 ? 0 : hash % values.num_unknown);
}

int64_t id_of(const StoredValues& values, const Lookup& lookup) {
  if (lookup.key.field.length == 0) return kMissing;
  if (lookup.found == 0) return unknown_id(values, lookup.key.hash);
  return kFirstUnknown + values.num_unknown + static_cast<int64_t>(lookup.found >> 8);
}

// Each step fetches what the next one reads: slots, then ends and text of longer values.
void encode_block(const StoredValues& values, const Column& column, int64_t first, int64_t n,
                  int64_t* ids) {
  Lookup lookups[kBlock];
  Lookup* longer[kBlock];
  int64_t num_longer = 0;
  for (int64_t i = 0; i < n; ++i) {
    lookups[i].key = key_of(column.at(first + i), column.end());
    lookups[i].slot = values.home(lookups[i].key.hash);
    CHECK(lookups[i].slot < num_homes(values.num_values), lookups[i].slot, values.num_values);
    prefetch(&values.index[lookups[i].slot]);
  }
  for (int64_t i = 0; i < n; ++i) {
    Lookup& lookup = lookups[i];
    lookup.slot = values.find(lookup.key, lookup.slot);
    lookup.found = values.rank_and_length(lookup.slot);
    if (lookup.key.field.length <= 8 || lookup.found == 0) continue;
    prefetch(values.ends + std::min(lookup.found >> 8, values.num_values));
    longer[num_longer++] = &lookup;
  }
  for (int64_t i = 0; i < num_longer; ++i) prefetch(values.value(longer[i]->found >> 8).data);
  for (int64_t i = 0; i < num_longer; ++i) check(values, longer[i]);
  for (int64_t i = 0; i < n; ++i) ids[i] = id_of(values, lookups[i]);
}

// The slots of a block's values, which are to be read soon.
void note_slots(const StoredValues& values, const Column& column, int64_t first, int64_t n, ReadAhead* ahead) {
  for (int64_t i = first; i < first + n; ++i) {
    const Field field = column.at(i);
    if (field.length == 0) continue;
    ahead->add(&values.index[values.home(key_of(field, column.end()).hash)], sizeof(values.index[0]));
  }
}

struct Range {
  int64_t feature, first, end;
};

std::vector<Range> ranges_of(const Column* columns, int64_t num_features) {
  std::vector<Range> ranges;
  for (int64_t f = 0; f < num_features; ++f) {
    for (int64_t first = 0; first < columns[f].num_values; first += kRange) {
      ranges.push_back({f, first, std::min(first + kRange, columns[f].num_values)});
    }
  }
  return ranges;
}

}  // namespace
}  // namespace hotrows

using namespace hotrows;

// ids[f] points to the ids of the values of column f: 1 for a missing one; the id of its rank for one
// that vocabulary owners[f] holds; else one of 2 .. 1 + num_unknown, by its hash, or -1 where
// num_unknown is 0. in_files: the slots of all values are read at once before the first one is needed.
HOTROWS_API int64_t hotrows_vocabularies_encode(const StoredValues* values, const Column* columns,
                                                const int64_t* owners, int64_t num_features,
                                                int64_t* const* ids, int64_t threads, int64_t in_files) {
  const std::vector<Range> ranges = ranges_of(columns, num_features);
  for (int64_t f = 0; f < num_features; ++f) CHECK(owners[f] >= 0 && columns[f].num_values >= 0, f, owners[f]);
  const int64_t num_ranges = static_cast<int64_t>(ranges.size());
  int64_t num_values = 0;
  for (int64_t f = 0; f < num_features; ++f) num_values += columns[f].num_values;
  if (in_files && num_values <= kAhead) {
    ReadAhead ahead;
    for (int64_t f = 0; f < num_features; ++f) {
      note_slots(values[owners[f]], columns[f], 0, columns[f].num_values, &ahead);
    }
    ahead.start();
  }
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads) if (num_values > kFew)
  for (int64_t r = 0; r < num_ranges; ++r) {
    const Range range = ranges[r];
    const StoredValues vocabulary = values[owners[range.feature]];
    for (int64_t first = range.first; first < range.end; first += kBlock) {
      const int64_t n = std::min(kBlock, range.end - first);
      encode_block(vocabulary, columns[range.feature], first, n, ids[range.feature] + first);
    }
  }
  return 0;
}

// Tells the system that a mapped file will be read here and there.
HOTROWS_API int64_t hotrows_read_at_random(const char* data, int64_t size) {
  const uintptr_t begin = reinterpret_cast<uintptr_t>(data) / page_size() * page_size();
  const uintptr_t end = reinterpret_cast<uintptr_t>(data) + size;
  return size > 0 ? ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_RANDOM) : 0;
}

// Begins to read rows `ids`, those below num_rows, of `width` bytes each of a mapped file, all at once.
HOTROWS_API int64_t hotrows_read_ahead(const char* data, int64_t width, int64_t num_rows, const int64_t* ids,
                                       int64_t n) {
  ReadAhead ahead;
  for (int64_t i = 0; i < n; ++i) {
    CHECK(ids[i] >= 0 && width > 0, i, ids[i], width);
    if (ids[i] < num_rows) ahead.add(data + ids[i] * width, width);
  }
  ahead.start();
  return 0;
}
