// A record, [weights | float32 state | int32 step], and its weights; see record.py.
#pragma once

#include <type_traits>

#include "codes.h"
#include "core.h"

namespace hotrows {

struct Layout {
  HOTROWS_RECORD_LAYOUT(HOTROWS_FIELD)

  int64_t weight_bytes() const { return dim * bits / 8; }
  bool has_scale() const { return bits <= 8; }
  float most() const { return static_cast<float>((1 << (bits - 1)) - 1); }  // the largest integer

  // Its parts follow one another, aligned, and end within a record.
  void check_all() const {
    CHECK(dim > 0 && (bits == 4 || bits == 8 || bits == 16 || bits == 32) && dim * bits % 8 == 0, dim, bits);
    CHECK(state_offset >= weight_bytes() + 4 * has_scale(), state_offset, dim, bits);
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

constexpr int64_t kPart = 16;  // weights that are rounded to integers at once

// The scale of integers: the float32 before the state.
inline float* scale_of(uint8_t* record, const Layout& layout) {
  return reinterpret_cast<float*>(record + layout.state_offset) - 1;
}

// The weights of a record in float32.
template <int kDim>
inline void read_weights(const uint8_t* record, const Layout& layout, float* __restrict w) {
  const int64_t width = kDim ? kDim : layout.dim;
  if (layout.bits == 32) {
    std::memcpy(w, record, static_cast<size_t>(width) * 4);
  } else if (layout.bits == 16) {
    const uint16_t* half = reinterpret_cast<const uint16_t*>(record);
    for (int64_t d = 0; d < width; ++d) w[d] = from_bfloat16(half[d]);
  } else {
    const int8_t* integers = reinterpret_cast<const int8_t*>(record);
    const float scale = reinterpret_cast<const float*>(record + layout.state_offset)[-1];
    if (layout.bits == 4) {
#pragma GCC unroll 1
      for (int64_t k = 0; k < width / 2; ++k) {
        w[2 * k] = scale * static_cast<float>(static_cast<int8_t>(record[k] << 4) >> 4);
        w[2 * k + 1] = scale * static_cast<float>(integers[k] >> 4);
      }
      return;
    }
#pragma GCC unroll 1  // else it becomes one conversion after the other
    for (int64_t d = 0; d < width; ++d) w[d] = scale * static_cast<float>(integers[d]);
  }
}

// A number of [0, 1) of random bits; each element is rounded by one.
inline float unit_of(uint64_t random) { return static_cast<float>(static_cast<int32_t>(random >> 40)) * 0x1p-24f; }

// The scale of a row, see `record.scale_of`; `before` is NaN where it has none.
template <int kDim, class Random>
inline float scale_for(const float* w, const Layout& layout, float before, Random random) {
  const int64_t width = kDim ? kDim : layout.dim;
  const uint32_t digits = static_cast<uint32_t>(layout.bits) - 2;
  const float most_integer = layout.most();
  uint32_t most = 0;
#pragma GCC unroll 1
  for (int64_t d = 0; d < width; ++d) most = std::max(most, bits_of(w[d]) & 0x7FFFFFFF);
  if (most > bits_of(most_integer * 0x1p121f)) return float_of(0x7FC00000);
  const float largest = float_of(most), limit = most_integer * before;
  bool fits = largest <= limit;
  if constexpr (!std::is_null_pointer_v<Random>)
    if (!fits && layout.bits == 4 && largest < limit + before) {
      fits = true;
      for (int64_t d = 0; d < width; ++d)
        if (std::fabs(w[d]) > limit) fits &= std::fabs(w[d]) - limit <= unit_of(random(d)) * before;
    }
  if (fits && static_cast<float>(layout.bits >> 1) * largest >= limit) return before;
  return float_of((std::max((most + (1u << (23 - digits)) - 1) >> 23, 27u + digits) - digits) << 23);
}

// Writes weights as integers in units of a scale. `random` gives the random bits of an element, which round it
// away from 0 with the probability of the part cut off; null: to the nearest.
template <int kDim, class Random>
inline void write_integers(uint8_t* record, const Layout& layout, const float* w, float before, Random random) {
  const int64_t width = kDim ? kDim : layout.dim;
  const float scale = *scale_of(record, layout) = scale_for<kDim>(w, layout, before, random);
  if (std::isnan(scale)) return void(std::memset(record, 0, static_cast<size_t>(layout.weight_bytes())));
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
    if (layout.bits == 4) {
#pragma GCC unroll 1
      for (int64_t k = 0; k < kPart / 2; ++k)
        integers[k] = static_cast<int8_t>((rounded[2 * k] & 15) | static_cast<uint32_t>(rounded[2 * k + 1]) << 4);
    }
    std::memcpy(record + begin * layout.bits / 8, integers, size * static_cast<size_t>(layout.bits) / 8);
  }
}

// The weights of a new record, rounded to the nearest.
inline void write_nearest(uint8_t* record, const Layout& layout, const float* w) {
  if (layout.has_scale()) return write_integers<0>(record, layout, w, float_of(0x7FC00000), nullptr);
  if (layout.bits == 32) return void(std::memcpy(record, w, static_cast<size_t>(layout.dim) * 4));
  for (int64_t d = 0; d < layout.dim; ++d) reinterpret_cast<uint16_t*>(record)[d] = round_to_nearest(w[d]);
}

}  // namespace hotrows
