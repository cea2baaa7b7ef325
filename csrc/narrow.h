// Numbers of 16 and 8 bits that products read, several to a word of 32 bits, and the rounding that makes them.
//
//   Bfloat16   two to a word; products and sums are float32
//   Int8       four to a word: events are unsigned, weights signed, each column with a scale; sums are int32
//
// Every result has the same bits at each level of instructions: products are exact, sums have one order, and what
// follows rounds once where `fma_once` says so. Processors without the instructions compute by float32, and by int32.
#pragma once

#include <cmath>

#include "lanes.h"
#include "vector_math.h"

namespace hotrows {

typedef int32_t Ints __attribute__((vector_size(kLanes * 4)));
using Words = std::vector<uint32_t, Lines<uint32_t>>;

inline Bits bits_of(Vec x) { return reinterpret_cast<Bits>(x); }
inline Vec floats_of(Bits x) { return reinterpret_cast<Vec>(x); }
inline Bits load_words(const uint32_t* from) {
  Bits x;
  std::memcpy(&x, from, sizeof x);
  return x;
}
inline void store_words(uint32_t* to, Bits x) { std::memcpy(to, &x, sizeof x); }

// a * b + c, rounded once, also where no instruction does: a product and sum in double would round twice.
inline Vec fma_once(Vec a, Vec b, Vec c) {
#if defined(__AVX512F__) || defined(__FMA__)
  return fma(a, b, c);
#else
  for (int64_t l = 0; l < kLanes; ++l) c[l] = std::fma(a[l], b[l], c[l]);
  return c;
#endif
}

// Smaller magnitudes are zero: those of biases, and a column of codes of 8 bits that has no larger one.
constexpr float kLeast = 7.8886090522101181e-31f;  // 2^-100

// Zero where a float32 is too small for exact sums, and one kind of NaN.
inline Vec plain(Vec x) {
  const Vec size = floats_of(bits_of(x) & 0x7FFFFFFF);
  return x == x ? (size < kLeast ? Vec{} : x) : floats_of(Bits{} + 0x7FC00000u);
}

// To the nearest bfloat16, in the high half of each word; ties away from zero. Below 2^-55 it is zero: so no sum of
// products is a denormal number, which instructions take for zero.
inline Bits rounded(Vec x) {
  const Bits bits = bits_of(x), out = (bits + 0x8000u) & 0xFFFF0000u;
  return x == x ? ((bits & 0x7FFFFFFFu) < 0x24000000u ? Bits{} : out) : Bits{} + 0x7FC00000u;
}

// The sigmoid of u / 2 from a table of 31 parabolas, on |u| < 15.5, times `size`.
struct SigmoidTable {
  float rows[3][32];
  explicit SigmoidTable(double size) {
    for (int n = -16; n < 16; ++n) {
      const auto at = [&](double r) { return size / (1 + std::exp(-(n + r) / 2)); };
      const double edge = std::sqrt(0.1875);  // Chebyshev's points of [-1/2, 1/2]
      const double left = at(-edge), middle = at(0), right = at(edge);
      const double parts[3] = {middle, (right - left) / (2 * edge), (right + left - 2 * middle) / (2 * edge * edge)};
      for (int k = 0; k < 3; ++k) rows[k][n & 31] = static_cast<float>(std::round(parts[k] * (1 << 20)) / (1 << 20));
    }
  }
};

struct SigmoidRows {
#if defined(__AVX512F__)
  __m512 low[3], high[3];
  explicit SigmoidRows(const SigmoidTable& table) {
    for (int k = 0; k < 3; ++k)
      low[k] = _mm512_loadu_ps(table.rows[k]), high[k] = _mm512_loadu_ps(table.rows[k] + 16);
  }
  Vec at(int k, Bits n) const { return _mm512_permutex2var_ps(low[k], reinterpret_cast<__m512i>(n), high[k]); }
#else
  const SigmoidTable& table;
  explicit SigmoidRows(const SigmoidTable& table) : table(table) {}
  Vec at(int k, Bits n) const {
    Vec out;
    for (int64_t l = 0; l < kLanes; ++l) out[l] = table.rows[k][n[l] & 31];
    return out;
  }
#endif
  Vec operator()(Vec u) const {
    u = within(-15.49f, u, 15.49f);
    const Vec shifted = u + kRounder, r = u - (shifted - kRounder);
    const Bits n = bits_of(shifted);
    return fma_once(r, fma_once(r, at(2, n), at(1, n)), at(0, n));
  }
};

// Values as events of a layer: of its columns codes, scales and the sums of codes; NaN in a column makes its scale NaN.
struct Columns {
  Words words;  // [words, columns]
  Floats scales;
  std::vector<int32_t> sums;
  int64_t stride;  // between rows of words
};

#if defined(__AVX512F__)
// What instructions read: words as they are.
struct AsWords {
  static Bits open(Bits w) { return w; }
  static Bits weight(uint32_t w) { return Bits{} + w; }
};
#endif

struct Bfloat16 {
  static constexpr int64_t kPer = 2;
  using Sum = Vec;

  // values: [rows, columns] of whole registers.
  static void narrow(const float* values, int64_t rows, int64_t columns, bool, Columns& to, uint32_t* words) {
    to.stride = columns;
    for (int64_t i = 0; i < rows; i += kPer)
      for (int64_t c = 0; c < columns; c += kLanes, words += kLanes) {
        const float* at = values + i * columns + c;
        const Bits low = rounded(load_full(at)) >> 16;
        store_words(words, i + 1 < rows ? rounded(load_full(at + columns)) | low : low);
      }
  }
  static Bits join(const Vec* x) { return rounded(x[1]) | rounded(x[0]) >> 16; }
  static Bits join_sigmoids(const Vec* y) {
    return ((bits_of(y[1]) + 0x8000u) & 0xFFFF0000u) | (bits_of(y[0]) + 0x8000u) >> 16;
  }
  static double size_of_sigmoid() { return 1; }
  static Sum begin(const Columns&, const float* bias, int64_t o) { return spread(bias[o]); }
  static Vec end(Sum sum, const Columns&, const float*, int64_t, const float*) { return sum; }

  struct Plain {
    struct Open {
      Vec odd, even;
    };
    static Open open(Bits w) { return {floats_of(w & 0xFFFF0000u), floats_of(w << 16)}; }
    static Open weight(uint32_t w) { return open(Bits{} + w); }
    static Sum add(Sum sum, Open e, Open w) { return fma(e.even, w.even, fma(e.odd, w.odd, sum)); }
  };
#if defined(__AVX512F__)
  struct Native : AsWords {
    static Sum add(Sum sum, Bits e, Bits w) {
      asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(e), "v"(w));
      return sum;
    }
  };
#endif
};

struct Int8 {
  static constexpr int64_t kPer = 4;
  using Sum = Ints;

  // above: codes are unsigned, 128 above what they mean.
  static void narrow(const float* values, int64_t rows, int64_t columns, bool above, Columns& to, uint32_t* words) {
    const uint32_t shift = above ? 128 : 0;
    to.scales.resize(columns), to.sums.resize(columns), to.stride = columns;
    for (int64_t c = 0; c < columns; c += kLanes) {
      Vec highest = {}, wrong = {};
      for (int64_t i = 0; i < rows; ++i) {
        const Vec x = load_full(values + i * columns + c);
        highest = higher(highest, floats_of(bits_of(x) & 0x7FFFFFFF));
        wrong += x * 0.0f;
      }
      highest = highest < kLeast ? Vec{} : highest;
      const Vec share = highest == 0.0f ? Vec{} : 127.0f / highest;
      store_full(&to.scales[c], highest / 127.0f + wrong);
      Ints sum = {};
      for (int64_t i = 0; i < rows; i += kPer) {
        Bits word = {};
        for (int64_t k = 0; k < kPer; ++k) {
          Vec x = i + k < rows ? load_full(values + (i + k) * columns + c) * share : Vec{};
          x = wrong == wrong ? x : Vec{};
          const Ints code = reinterpret_cast<Ints>(bits_of(x + kRounder)) - 0x4B400000;
          sum += code;
          word |= ((reinterpret_cast<Bits>(code) + shift) & 255u) << static_cast<uint32_t>(8 * k);
        }
        store_words(words + i / kPer * columns + c, word);
      }
      std::memcpy(&to.sums[c], &sum, sizeof sum);
    }
  }
  static Bits join_sigmoids(const Vec* y) {
    Bits word = {};
    for (uint32_t k = 0; k < kPer; ++k) word |= (bits_of(y[k] + kRounder) & 255u) << 8 * k;
    return word;
  }
  static double size_of_sigmoid() { return 255; }
  static Sum begin(const Columns& w, const float*, int64_t o) { return Ints{} + w.sums[o]; }
  static Vec end(Sum sum, const Columns& w, const float* bias, int64_t o, const float* scales) {
    return fma_once(__builtin_convertvector(sum, Vec) * load_full(scales), spread(w.scales[o]), spread(bias[o]));
  }

  struct Plain {
    struct Open {
      Ints parts[kPer];
    };
    static Open open(Bits w) {
      Open out;
      for (uint32_t k = 0; k < kPer; ++k) out.parts[k] = reinterpret_cast<Ints>(w >> 8 * k & 255u);
      return out;
    }
    static Open weight(uint32_t w) {
      Open out;
      for (uint32_t k = 0; k < kPer; ++k) out.parts[k] = Ints{} + static_cast<int8_t>(w >> 8 * k);
      return out;
    }
    static Sum add(Sum sum, const Open& e, const Open& w) {
      for (int64_t k = 0; k < kPer; ++k) sum += e.parts[k] * w.parts[k];
      return sum;
    }
  };
#if defined(__AVX512F__)
  struct Native : AsWords {
    static Sum add(Sum sum, Bits e, Bits w) {
      asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(e), "v"(w));
      return sum;
    }
  };
#endif
};

template <class F>
inline int64_t words_of(int64_t n) {
  return (n + F::kPer - 1) / F::kPer;
}

// Outputs o .. o + OUTPUTS - 1 of y: [.., TILE], of x: [words, TILE]; scales: of events, for Int8.
template <class F, class CODE, int REGISTERS, int OUTPUTS>
__attribute__((noinline)) void block(const uint32_t* x, int64_t words, const Columns& of, int64_t o,
                                     const float* bias, const float* scales, float* y) {
  typename F::Sum sums[OUTPUTS][REGISTERS];
  const uint32_t* w = of.words.data() + o;
#pragma GCC unroll 16
  for (int k = 0; k < OUTPUTS; ++k)
#pragma GCC unroll 2
    for (int r = 0; r < REGISTERS; ++r) sums[k][r] = F::begin(of, bias, o + k);
  for (int64_t i = 0; i < words; ++i, x += REGISTERS * kLanes, w += of.stride) {
    const auto first = CODE::open(load_words(x)), second = CODE::open(load_words(x + (REGISTERS - 1) * kLanes));
#pragma GCC unroll 16
    for (int k = 0; k < OUTPUTS; ++k) {
      const auto weight = CODE::weight(w[k]);
      sums[k][0] = CODE::add(sums[k][0], first, weight);
      if (REGISTERS > 1) sums[k][REGISTERS - 1] = CODE::add(sums[k][REGISTERS - 1], second, weight);
    }
  }
#pragma GCC unroll 16
  for (int k = 0; k < OUTPUTS; ++k)
#pragma GCC unroll 2
    for (int r = 0; r < REGISTERS; ++r)
      store_full(y + (o + k) * REGISTERS * kLanes + r * kLanes,
                 F::end(sums[k][r], of, bias, o + k, scales + r * kLanes));
}

// The outputs from `o` to `end`.
template <class F, class CODE, int REGISTERS>
inline void product(const uint32_t* x, int64_t in, const Columns& of, const float* bias, const float* scales, int64_t o,
                    int64_t end, float* y) {
  each_block(o, end, [&](int64_t first, auto outputs) {
    block<F, CODE, REGISTERS, outputs>(x, words_of<F>(in), of, first, bias, scales, y);
  });
}

// Whether this processor has the instructions, and they compute as the plain path: of a pair the odd one first.
template <class F>
inline bool is_native() {
#if defined(__AVX512F__)
  if (!__builtin_cpu_supports(F::kPer == 2 ? "avx512bf16" : "avx512vnni")) return false;
  if constexpr (F::kPer == 2) {
    const Bits x = Bits{} + 0x3F803F80u, w = Bits{} + 0x4B80CB80u;  // 1, 1 and 2^24, -2^24: 1 is lost
    const Vec sum = spread(1.0f);
    using P = Bfloat16::Plain;
    const Vec wrong = Bfloat16::Native::add(sum, x, w) - P::add(sum, P::open(x), P::open(w));
    return wrong[0] == 0;
  }
  return true;
#else
  return false;
#endif
}

}  // namespace hotrows
