// A value of an id column: bytes, their hash, and their first word, by which most are compared.
#pragma once

#include "text.h"

namespace hotrows {

struct Key {
  Field field;
  uint64_t hash;
  uint64_t word;  // the value itself where it has at most eight bytes
};

// The values of an id column, as a reader hands them over; `offsets` is null where a row has one.
struct Column {
  const char* text;
  int64_t size;
  const uint32_t* starts;
  const uint32_t* lengths;
  const int64_t* offsets;
  int64_t num_values;

  Field at(int64_t n) const {
    CHECK(n >= 0 && n < num_values, n, num_values);
    CHECK(lengths[n] == 0 || int64_t{starts[n]} + lengths[n] <= size, n, starts[n], lengths[n], size);
    return {text + starts[n], lengths[n]};
  }
  const char* end() const { return text + size; }
};
static_assert(sizeof(Column) == 6 * sizeof(int64_t), "passed as rows of int64");

// The first eight bytes of a field in little-endian order, padded with zeros. Bytes up to `text_end`
// may be read.
inline uint64_t first_word(Field field, const char* text_end) {
  const uint32_t length = std::min(field.length, 8u);
  CHECK(length == 0 || field.data + length <= text_end, field.length);
  uint64_t word = 0;
  if (text_end - field.data < 8) {
    std::memcpy(&word, field.data, length);
    return word;
  }
  std::memcpy(&word, field.data, 8);
  return length == 8 ? word : word & ((1ull << (8 * length)) - 1);
}

// hash(value): h = length * golden; h = mix64(h ^ word) for each eight bytes, the last zero-padded.
inline uint64_t hash_of(Field field, uint64_t word, const char* text_end) {
  uint64_t hash = mix64(field.length * kGolden ^ word);
  for (uint32_t i = 8; i < field.length; i += 8) {
    hash = mix64(hash ^ first_word({field.data + i, field.length - i}, text_end));
  }
  return hash;
}

inline Key key_of(Field field, const char* text_end) {
  const uint64_t word = first_word(field, text_end);
  return {field, hash_of(field, word, text_end), word};
}

inline bool same(Field a, Field b) {
  return a.length == b.length && (a.length == 0 || std::memcmp(a.data, b.data, a.length) == 0);
}

}  // namespace hotrows
