// The index of a stored vocabulary: open addressing with linear probing over a mapped file.
//
//   slots of 16 bytes    word             uint64   the value itself, zero-padded, where it has at most
//                                                  eight bytes; the hash of a longer one
//                        rank_and_length  uint64   rank << 8 | min(length, 9); 0: the slot is free
//
// A vocabulary of V values has S = V * 8 / 5 + 1 places (rounded down), and a value with hash h has
// the home h * S >> 64. In the order of (hash, rank), each value stands in the first slot from its
// home on that comes after the value before it: just where inserting one by one in this order would
// put it. As homes rise with hashes, a table is written from front to back. Probing never wraps
// around: slots run over S by as many as are needed, and the last one is always free.
//
// A value is looked up from its home on, up to the first free slot. A slot with the word of a longer
// value is compared with the text of its rank.
#pragma once

#include "spill.h"
#include "table.h"

namespace hotrows {

struct IndexSlot {
  uint64_t word, rank_and_length;
};

constexpr uint32_t kLong = 9;  // the length that stands for all longer than eight

inline uint64_t num_homes(uint64_t num_values) { return num_values * 8 / 5 + 1; }

inline uint64_t home_of(uint64_t hash, uint64_t homes) {
  CHECK(homes > 0);
  return static_cast<uint64_t>(static_cast<unsigned __int128>(hash) * homes >> 64);
}

inline uint32_t length_class(Field value) { return std::min(value.length, kLong); }

inline uint64_t index_word(const Key& key) { return key.field.length <= 8 ? key.word : key.hash; }

inline Placed placed(const Key& key, int64_t rank) {
  return {key.hash, index_word(key), static_cast<uint64_t>(rank) << 8 | length_class(key.field)};
}

inline bool before(const Placed& a, const Placed& b) {
  return a.hash != b.hash ? a.hash < b.hash : a.rank_and_length < b.rank_and_length;
}

// Writes values, which come in the order of (hash, rank), as an index.
class IndexWriter {
 public:
  IndexWriter(FilePtr file, int64_t buffer, int64_t num_values)
      : to_(std::move(file), buffer), homes_(num_homes(num_values)) {}

  void put(const Placed& value) {
    leave_free(home_of(value.hash, homes_));
    CHECK(next_ >= home_of(value.hash, homes_), next_, value.hash);
    to_.put(IndexSlot{value.word, value.rank_and_length});
    ++next_;
  }

  void close() {
    leave_free(std::max(homes_, next_ + 1));
    to_.flush();
  }

 private:
  void leave_free(uint64_t end) {
    for (; next_ < end; ++next_) to_.put(IndexSlot{0, 0});
  }

  Writer to_;
  uint64_t homes_, next_ = 0;
};

// A vocabulary as it is stored, and mapped. The file may be damaged: nothing beyond it is read.
struct StoredValues {
  const IndexSlot* index;
  uint64_t num_slots;
  uint64_t num_values;
  const int64_t* ends;
  const char* text;
  int64_t text_size;
  int64_t num_unknown;

  uint64_t home(uint64_t hash) const { return home_of(hash, num_homes(num_values)); }

  // What stands in slot i; 0 where it is free.
  uint64_t rank_and_length(uint64_t i) const { return i < num_slots ? index[i].rank_and_length : 0; }

  // The first slot from i on with this word and length, or that is free.
  uint64_t find(const Key& key, uint64_t i) const {
    CHECK(i >= home(key.hash), i, home(key.hash));
    const uint64_t word = index_word(key);
    const uint32_t length = length_class(key.field);
    while (const uint64_t found = rank_and_length(i)) {
      if (index[i].word == word && (found & 255) == length) break;
      ++i;
    }
    return i;
  }

  int64_t start(uint64_t rank) const { return rank - 1 < num_values ? ends[rank - 1] : 0; }

  Field value(uint64_t rank) const {
    const int64_t first = start(rank), end = rank < num_values ? ends[rank] : 0;
    if (first < 0 || end < first || end > text_size || end - first > UINT32_MAX) return {text, 0};
    return {text + first, static_cast<uint32_t>(end - first)};
  }

  const char* text_end() const { return text + text_size; }
};
static_assert(sizeof(StoredValues) == 7 * sizeof(int64_t), "passed as rows of int64");

}  // namespace hotrows
