// A record, [weights | float32 state | int32 step], and its weights; see record.py.
#pragma once

#include <type_traits>

#include "codes.h"
#include "core.h"

namespace hotrows {

struct Layout {
  HOTROWS_RECORD_LAYOUT(HOTROWS_FIELD)

  // Its parts follow one another, aligned, and end within a record.
  void check_all() const {
    CHECK(dim > 0 && (itemsize == 1 || itemsize == 2 || itemsize == 4), dim, itemsize);
    CHECK(state_offset >= dim * itemsize + 4 * (itemsize == 1), state_offset, dim, itemsize);
    CHECK(state_offset % 4 == 0, state_offset);
    CHECK(state_width >= 0 && state_offset + 4 * state_width <= stride, state_offset, state_width, stride);
    CHECK(step_offset < 0 || (step_offset >= state_offset + 4 * state_width && step_offset + 4 <= stride), step_offset);
    CHECK(stride % 4 == 0, stride);
  }
};

inline float float_of(uint32_t bits) {
  float out;
  std::memcpy(&out, &bits, 4);
  return out;
}
inline uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}

inline float from_bfloat16(uint16_t x) { return float_of(static_cast<uint32_t>(x) << 16); }

inline uint16_t round_to_nearest(float x) {
  const uint32_t bits = bits_of(x);
  if ((bits & 0x7F800000) == 0x7F800000) return static_cast<uint16_t>(bits >> 16 | (bits & 0xFFFF ? 1 : 0));
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

// Rounds up with the probability of the part cut off, so that the mean is x.
inline uint16_t round_stochastically(float x, uint64_t random) {
  uint32_t bits = bits_of(x);
  if ((bits & 0x7F800000) != 0x7F800000) bits += static_cast<uint32_t>(random >> 48);
  return static_cast<uint16_t>(bits >> 16);
}

constexpr float kMost = 127;  // the largest integer of 8 bits
constexpr int64_t kPart = 16;  // weights that are rounded to integers at once

// The scale of integers: the float32 before the state.
inline float* scale_of(uint8_t* record, const Layout& layout) {
  return reinterpret_cast<float*>(record + layout.state_offset) - 1;
}

// The weights of a record in float32.
template <int kDim>
inline void read_weights(const uint8_t* record, const Layout& layout, float* __restrict w) {
  const int64_t width = kDim ? kDim : layout.dim;
  if (layout.itemsize == 4) {
    std::memcpy(w, record, static_cast<size_t>(width) * 4);
  } else if (layout.itemsize == 2) {
    const uint16_t* half = reinterpret_cast<const uint16_t*>(record);
    for (int64_t d = 0; d < width; ++d) w[d] = from_bfloat16(half[d]);
  } else {
    const int8_t* integers = reinterpret_cast<const int8_t*>(record);
    const float scale = reinterpret_cast<const float*>(record + layout.state_offset)[-1];
#pragma GCC unroll 1  // else it becomes one conversion after the other
    for (int64_t d = 0; d < width; ++d) w[d] = scale * static_cast<float>(integers[d]);
  }
}

// The scale of a row, see `record.scale_of`; `before` is NaN where it has none.
template <int kDim>
inline float scale_for(const float* w, int64_t dim, float before) {
  const int64_t width = kDim ? kDim : dim;
  uint32_t most = 0;
#pragma GCC unroll 1
  for (int64_t d = 0; d < width; ++d) most = std::max(most, bits_of(w[d]) & 0x7FFFFFFF);
  if (most > 0x7F7E0000) return float_of(0x7FC00000);  // beyond 127 * 2^121
  const float largest = float_of(most);
  if (largest <= kMost * before && 4 * largest >= kMost * before) return before;
  return float_of((std::max((most + 0x1FFFF) >> 23, 33u) - 6) << 23);
}

// Writes weights as integers in units of a scale. `random` gives the random bits of an element, which round it
// away from 0 with the probability of the part cut off; null: to the nearest.
template <int kDim, class Random>
inline void write_integers(uint8_t* record, const Layout& layout, const float* w, float before, Random random) {
  const int64_t width = kDim ? kDim : layout.dim;
  const float scale = *scale_of(record, layout) = scale_for<kDim>(w, width, before);
  if (std::isnan(scale)) return void(std::memset(record, 0, static_cast<size_t>(width)));
  const float inverse = float_of((254u << 23) - bits_of(scale));  // of a power of two
  for (int64_t begin = 0; begin < width; begin += kPart) {
    const size_t size = static_cast<size_t>(std::min(kPart, width - begin));
    float x[kPart] = {};
    std::memcpy(x, w + begin, size * 4);
    int32_t rounded[kPart];
    int8_t integers[kPart];
    if constexpr (std::is_null_pointer_v<Random>) {
      for (int64_t d = 0; d < kPart; ++d) rounded[d] = static_cast<int32_t>(std::nearbyint(x[d] * inverse));
    } else {
#pragma GCC unroll 1  // in loops of numbers of one size, which the compiler makes fast
      for (int64_t d = 0; d < kPart; ++d) rounded[d] = static_cast<int32_t>(random(begin + d) >> 40);
#pragma GCC unroll 1
      for (int64_t d = 0; d < kPart; ++d) {
        const float unit = static_cast<float>(rounded[d]) * 0x1p-24f;
        const float magnitude = std::fabs(x[d] * inverse);
        const int32_t whole = static_cast<int32_t>(magnitude);
        const int32_t away = whole + (unit < magnitude - static_cast<float>(whole) ? 1 : 0);
        rounded[d] = x[d] < 0 ? -away : away;
      }
    }
#pragma GCC unroll 1
    for (int64_t d = 0; d < kPart; ++d) integers[d] = static_cast<int8_t>(rounded[d]);
    std::memcpy(record + begin, integers, size);
  }
}

// The weights of a new record, rounded to the nearest.
inline void write_nearest(uint8_t* record, const Layout& layout, const float* w) {
  if (layout.itemsize == 1) return write_integers<0>(record, layout, w, float_of(0x7FC00000), nullptr);
  if (layout.itemsize == 4) return void(std::memcpy(record, w, static_cast<size_t>(layout.dim) * 4));
  for (int64_t d = 0; d < layout.dim; ++d) reinterpret_cast<uint16_t*>(record)[d] = round_to_nearest(w[d]);
}

}  // namespace hotrows
