// A chunk of raw text cut into fields: for each column in use, where the field of every row stands.
#pragma once

#include "core.h"

namespace hotrows {

struct Field {
  const char* data;
  uint32_t length;
};

inline bool is_digit(char c) { return c >= '0' && c <= '9'; }

// The number of decimal digits from `p` on.
inline int64_t digits(const char* p, const char* end) {
  const char* const start = p;
  while (p < end && is_digit(*p)) ++p;
  return p - start;
}

// starts and lengths are [columns in use, num_rows]; the text is `size` bytes of whole lines.
struct Fields {
  const char* text;
  int64_t size;
  const uint32_t* starts;
  const uint32_t* lengths;
  int64_t num_rows;

  Field at(int64_t column, int64_t row) const {
    const int64_t i = column * num_rows + row;
    CHECK(column >= 0 && row >= 0 && row < num_rows, column, row, num_rows);
    CHECK(int64_t{starts[i]} + lengths[i] <= size, column, row, starts[i], lengths[i], size);
    return {text + starts[i], lengths[i]};
  }
};

}  // namespace hotrows
