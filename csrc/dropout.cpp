// Dropout from a counter-based generator: which elements stay follows from the key and their place
// alone, so the way back draws the same ones again and no mask is kept.
#include "core.h"

namespace {

constexpr int64_t kBlock = 1024;  // elements; a draw of 64 random bits serves four neighbours

inline float times(float x, float scale) { return x * scale; }
inline uint16_t times(uint16_t x, float scale) {  // bfloat16, rounded to nearest even
  const uint32_t wide = static_cast<uint32_t>(x) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  value *= scale;
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

void draw(uint64_t key, int64_t first, uint16_t* bits) {
  for (int64_t n = 0; n < kBlock / 4; ++n) {
    const uint64_t four = hotrows::random_bits(key, static_cast<uint64_t>(first / 4 + n));
    std::memcpy(bits + 4 * n, &four, sizeof four);
  }
}

template <class T>
void dropout(const T* x, int64_t size, uint64_t key, uint16_t dropped, float scale, T* out) {
#pragma omp parallel for schedule(static)
  for (int64_t first = 0; first < size; first += kBlock) {
    uint16_t bits[kBlock];
    draw(key, first, bits);
    const int64_t count = std::min(kBlock, size - first);
    for (int64_t n = 0; n < count; ++n)
      out[first + n] = bits[n] < dropped ? T(0) : times(x[first + n], scale);
  }
}

}  // namespace

// out = x * scale, or 0 with probability dropped / 65536; itemsize 4 is float32, 2 bfloat16.
HOTROWS_API void hotrows_dropout(const void* x, int64_t size, uint64_t key, int64_t dropped,
                                 float scale, int64_t itemsize, void* out) {
  if (itemsize == 4)
    dropout((const float*)x, size, key, static_cast<uint16_t>(dropped), scale, (float*)out);
  else
    dropout((const uint16_t*)x, size, key, static_cast<uint16_t>(dropped), scale, (uint16_t*)out);
}
