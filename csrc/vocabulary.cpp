// Vocabularies: counting the values of id columns, ranking them, and turning values into ids.
//
// A vocabulary is an open-addressing hash table from bytes to a number: a count first, an id later.
// A value of at most eight bytes stands in its slot; a longer one in an arena. Threads work on
// different vocabularies, each in the order of the rows, so a result never depends on their number.
// The set of vocabularies is a handle that the caller creates and destroys.
#include "text.h"

#include <memory>
#include <new>

namespace hotrows {
namespace {

constexpr int64_t kBlock = 64;  // rows hashed and prefetched together, before the first is looked up

struct Key {
  Field field;
  uint64_t hash;
  uint64_t word;  // the value itself where it has at most eight bytes
};

// The first eight bytes of a field in little-endian order, padded with zeros.
uint64_t first_word(Field field, const char* text_end) {
  const uint32_t length = std::min(field.length, 8u);
  uint64_t word = 0;
  if (text_end - field.data < 8) {
    std::memcpy(&word, field.data, length);
    return word;
  }
  std::memcpy(&word, field.data, 8);
  return length == 8 ? word : word & ((1ull << (8 * length)) - 1);
}

// hash(value): h = length * golden; h = mix64(h ^ word) for each eight bytes, the last zero-padded.
uint64_t hash_of(Field field, uint64_t word, const char* text_end) {
  uint64_t hash = mix64(field.length * kGolden ^ word);
  for (uint32_t i = 8; i < field.length; i += 8) {
    hash = mix64(hash ^ first_word({field.data + i, field.length - i}, text_end));
  }
  return hash;
}

Key key_of(Field field, const char* text_end) {
  const uint64_t word = first_word(field, text_end);
  return {field, hash_of(field, word, text_end), word};
}

struct Slot {
  uint64_t word;    // the value, or where it begins in the arena
  int64_t number;   // how often it was seen; later its id
  uint32_t length;  // 0: the slot is free
  uint32_t tag;     // the upper half of the hash
};

struct Ranked {
  int64_t count;
  uint64_t prefix;  // first eight bytes, big-endian: compares as the bytes do
  uint64_t slot;
};

class Vocabulary {
 public:
  Vocabulary() : slots_(64) {}

  void prefetch(const Key& key) const { hotrows::prefetch(&slots_[key.hash & (slots_.size() - 1)]); }

  // The number of a value, or null where it was never seen.
  const int64_t* find(const Key& key) const {
    const Slot& slot = slots_[place(key)];
    return slot.length ? &slot.number : nullptr;
  }

  // The number of a value, 0 at first.
  int64_t& at(const Key& key) {
    uint64_t i = place(key);
    if (slots_[i].length == 0) {
      if (used_ * 8 >= slots_.size() * 5) {
        grow();
        i = place(key);
      }
      slots_[i] = {key.word, 0, key.field.length, static_cast<uint32_t>(key.hash >> 32)};
      if (key.field.length > 8) {
        slots_[i].word = arena_.size();
        arena_.insert(arena_.end(), key.field.data, key.field.data + key.field.length);
      }
      ++used_;
    }
    return slots_[i].number;
  }

  // Lists the values seen at least min_count times: by falling count, equal ones by their bytes.
  void rank(int64_t min_count) {
    ranked_.clear();
    for (uint64_t i = 0; i < slots_.size(); ++i) {
      const Slot& slot = slots_[i];
      if (slot.length == 0 || slot.number < min_count) continue;
      const uint64_t word = slot.length <= 8 ? slot.word : first_word(value(slot), end());
      ranked_.push_back({slot.number, __builtin_bswap64(word), i});
    }
    std::sort(ranked_.begin(), ranked_.end(), [this](const Ranked& a, const Ranked& b) {
      if (a.count != b.count) return a.count > b.count;
      if (a.prefix != b.prefix) return a.prefix < b.prefix;
      return before(slots_[a.slot], slots_[b.slot]);
    });
  }

  int64_t size() const { return static_cast<int64_t>(used_); }
  int64_t num_ranked() const { return static_cast<int64_t>(ranked_.size()); }

  int64_t ranked_bytes() const {
    int64_t bytes = 0;
    for (const Ranked& r : ranked_) bytes += slots_[r.slot].length;
    return bytes;
  }

  void copy_ranked(int64_t* counts, int64_t* ends, char* bytes) const {
    int64_t written = 0;
    for (size_t i = 0; i < ranked_.size(); ++i) {
      const Field field = value(slots_[ranked_[i].slot]);
      std::memcpy(bytes + written, field.data, field.length);
      written += field.length;
      counts[i] = ranked_[i].count;
      ends[i] = written;
    }
  }

  int64_t num_unknown = 1;

 private:
  uint64_t place(const Key& key) const {
    const uint64_t mask = slots_.size() - 1;
    uint64_t i = key.hash & mask;
    while (slots_[i].length != 0 && !same(slots_[i], key)) i = (i + 1) & mask;
    return i;
  }

  bool same(const Slot& slot, const Key& key) const {
    if (slot.length != key.field.length || slot.tag != key.hash >> 32) return false;
    if (slot.length <= 8) return slot.word == key.word;
    return std::memcmp(arena_.data() + slot.word, key.field.data, slot.length) == 0;
  }

  bool before(const Slot& a, const Slot& b) const {
    const Field x = value(a), y = value(b);
    const int order = std::memcmp(x.data, y.data, std::min(x.length, y.length));
    return order != 0 ? order < 0 : x.length < y.length;
  }

  Field value(const Slot& slot) const {
    const char* data = slot.length <= 8 ? reinterpret_cast<const char*>(&slot.word)
                                        : arena_.data() + slot.word;
    return {data, slot.length};
  }

  const char* end() const { return arena_.data() + arena_.size(); }

  void grow() {
    std::vector<Slot> old(slots_.size() * 2);
    old.swap(slots_);
    const uint64_t mask = slots_.size() - 1;
    for (const Slot& slot : old) {
      if (slot.length == 0) continue;
      const Field field = value(slot);
      uint64_t i = (slot.length <= 8 ? mix64(slot.length * kGolden ^ slot.word)
                                     : key_of(field, end()).hash) & mask;
      while (slots_[i].length != 0) i = (i + 1) & mask;
      slots_[i] = slot;
    }
  }

  std::vector<Slot> slots_;
  std::vector<char> arena_;
  std::vector<Ranked> ranked_;
  uint64_t used_ = 0;
};

using Vocabularies = std::vector<Vocabulary>;

Vocabularies& vocabularies(int64_t handle) { return *reinterpret_cast<Vocabularies*>(handle); }

// Calls visit(key, row) for every row of a column, the slots of a block fetched ahead; a missing
// value has a key of length 0.
template <typename Visit>
void for_each_key(const Vocabulary& vocabulary, const Fields& fields, int64_t column, Visit visit) {
  Key keys[kBlock];
  for (int64_t first = 0; first < fields.num_rows; first += kBlock) {
    const int64_t size = std::min(kBlock, fields.num_rows - first);
    for (int64_t i = 0; i < size; ++i) {
      keys[i] = key_of(fields.at(column, first + i), fields.text + fields.size);
      vocabulary.prefetch(keys[i]);
    }
    for (int64_t i = 0; i < size; ++i) visit(keys[i], first + i);
  }
}

// Runs work(i) for i < n on several threads; false where memory ran out.
template <typename Work>
bool in_parallel(int64_t n, int64_t threads, Work work) {
  bool enough = true;
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads) reduction(&& : enough)
  for (int64_t i = 0; i < n; ++i) {
    try {
      work(i);
    } catch (const std::bad_alloc&) {
      enough = false;
    }
  }
  return enough;
}

}  // namespace
}  // namespace hotrows

using namespace hotrows;

HOTROWS_API int64_t hotrows_vocabularies_create(int64_t num_vocabularies) {
  return reinterpret_cast<int64_t>(new Vocabularies(num_vocabularies));
}

HOTROWS_API int64_t hotrows_vocabularies_destroy(int64_t handle) {
  delete &vocabularies(handle);
  return 0;
}

// Counts the values of the chosen rows: feature f reads column columns[f] and counts into vocabulary
// owners[f]. Missing values are not counted. Returns 0, or -1 where memory ran out.
HOTROWS_API int64_t hotrows_count(int64_t handle, const char* text, int64_t size,
                                  const uint32_t* starts, const uint32_t* lengths, int64_t num_rows,
                                  const int32_t* columns, const int32_t* owners,
                                  int64_t num_features, const uint8_t* chosen, int64_t threads) {
  const Fields fields{text, size, starts, lengths, num_rows};
  Vocabularies& all = vocabularies(handle);
  const bool enough = in_parallel(static_cast<int64_t>(all.size()), threads, [&](int64_t v) {
    for (int64_t f = 0; f < num_features; ++f) {
      if (owners[f] != v) continue;
      for_each_key(all[v], fields, columns[f], [&](const Key& key, int64_t row) {
        if (chosen[row] && key.field.length > 0) ++all[v].at(key);
      });
    }
  });
  return enough ? 0 : -1;
}

// Ranks every vocabulary's values seen at least min_counts[v] times. Returns 0, or -1 where memory
// ran out.
HOTROWS_API int64_t hotrows_vocabularies_rank(int64_t handle, const int64_t* min_counts,
                                              int64_t threads) {
  Vocabularies& all = vocabularies(handle);
  const bool enough = in_parallel(static_cast<int64_t>(all.size()), threads,
                                  [&](int64_t v) { all[v].rank(min_counts[v]); });
  return enough ? 0 : -1;
}

// sizes = {distinct values, ranked values, bytes of the ranked values}.
HOTROWS_API int64_t hotrows_vocabulary_sizes(int64_t handle, int64_t v, int64_t* sizes) {
  const Vocabulary& vocabulary = vocabularies(handle)[v];
  sizes[0] = vocabulary.size();
  sizes[1] = vocabulary.num_ranked();
  sizes[2] = vocabulary.ranked_bytes();
  return 0;
}

// Copies the ranked values out: their counts, where each ends in `bytes`, and the bytes; then
// forgets the vocabulary, to give its memory back.
HOTROWS_API int64_t hotrows_vocabulary_take(int64_t handle, int64_t v, int64_t* counts,
                                            int64_t* ends, char* bytes) {
  Vocabulary& vocabulary = vocabularies(handle)[v];
  vocabulary.copy_ranked(counts, ends, bytes);
  vocabulary = Vocabulary();
  return 0;
}

// Fills vocabulary v with values in order of rank: value i gets the id 2 + num_unknown + i. Returns
// 0, or -1 where memory ran out.
HOTROWS_API int64_t hotrows_vocabulary_fill(int64_t handle, int64_t v, int64_t num_values,
                                            const int64_t* ends, const char* bytes,
                                            int64_t num_unknown) {
  Vocabulary& vocabulary = vocabularies(handle)[v];
  vocabulary.num_unknown = num_unknown;
  const char* const text_end = bytes + (num_values ? ends[num_values - 1] : 0);
  const bool enough = in_parallel(1, 1, [&](int64_t) {
    for (int64_t i = 0; i < num_values; ++i) {
      const int64_t start = i ? ends[i - 1] : 0;
      const Field field{bytes + start, static_cast<uint32_t>(ends[i] - start)};
      vocabulary.at(key_of(field, text_end)) = 2 + num_unknown + i;
    }
  });
  return enough ? 0 : -1;
}

// ids [num_features, num_rows]: 1 for a missing value; one of 2 .. 2 + num_unknown - 1, by its hash,
// for one that the vocabulary lacks.
HOTROWS_API int64_t hotrows_encode(int64_t handle, const char* text, int64_t size,
                                   const uint32_t* starts, const uint32_t* lengths,
                                   int64_t num_rows, const int32_t* columns, const int32_t* owners,
                                   int64_t num_features, int64_t* ids, int64_t threads) {
  const Fields fields{text, size, starts, lengths, num_rows};
  const Vocabularies& all = vocabularies(handle);
  in_parallel(num_features, threads, [&](int64_t f) {
    const Vocabulary& vocabulary = all[owners[f]];
    int64_t* const out = ids + f * num_rows;
    for_each_key(vocabulary, fields, columns[f], [&](const Key& key, int64_t row) {
      if (key.field.length == 0) {
        out[row] = 1;
        return;
      }
      const int64_t* id = vocabulary.find(key);
      out[row] = id ? *id : 2 + static_cast<int64_t>(key.hash % vocabulary.num_unknown);
    });
  });
  return 0;
}
