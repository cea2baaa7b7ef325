// The last states of GRUs with attention whose samples share lists, forward: samples of a list stand in the lanes, so
// that a step is one product, and nothing is kept but the state. The formulas are those of recurrent.cpp, but for the
// order of one sum: the inputs' share and the bias are added first, once for all samples of a list. With 16 bits
// (narrow.h) the product reads the state in bfloat16, and gates come from the table; the state stays float32.
#include "chunks.h"
#include "codes.h"
#include "narrow.h"

namespace {

using namespace hotrows;

using Kind = RecurrentKind;

struct Cells {
  int64_t H;
  Kind kind;
  bool after;
  Floats turned;       // [H, P], U transposed
  const float* parts;  // [N, 3H]
  const float* bias;   // [3H]
  Columns narrow;      // U in words, for 16 bits
  SigmoidTable table{1};
  int64_t P() const { return padded(3 * H); }
};

struct Scratch {
  Floats begins, h, y, weights;  // [L, 3H], and tiles [H, TILE], [3H, TILE], [L, TILE]
  Words words;                   // of h
  int64_t list = -1;
};

// What each step's product begins with: x + c, of the candidate the bias alone where the reset gate comes after.
void begin(const Cells& c, const float* parts, int64_t L, Floats& out) {
  const int64_t width = 3 * c.H, added = c.after ? 2 * c.H : width;
  out.resize(L * width);
  for (int64_t t = 0; t < L; ++t)
    for (int64_t i = 0; i < width; ++i)
      out[t * width + i] = i < added ? parts[t * width + i] + c.bias[i] : c.bias[i];
}

inline Vec share(Kind kind, Vec z, Vec a) {
  switch (kind) {
    case Kind::gru: return 1.0f - z;
    case Kind::augru: return a * z;
    case Kind::augru_code: return 1.0f - (1.0f - a) * z;
    case Kind::agru: return a;
  }
  return a;
}

// The products and functions of a step, y += U h: in float32, or in bfloat16.
template <int REGISTERS>
struct Whole {
  const Cells& c;
  void product(const float* h, Scratch&, const float* first, int64_t o, int64_t end, float* y) const {
    rows_of<REGISTERS>(h, c.H, c.turned.data() + o, c.P(), first + o, end - o, y + o * REGISTERS * kLanes);
  }
  void sigmoids(float* y, int64_t n) const { sigmoid_all(y, n, y); }
  Vec tanh(Vec x) const { return hotrows::tanh(x); }
  static Vec add(Vec a, Vec b, Vec c) { return fma(a, b, c); }
};

template <class CODE, int REGISTERS>
struct Narrow {
  const Cells& c;
  SigmoidRows sigmoid{c.table};
  void product(const float* h, Scratch& s, const float* first, int64_t o, int64_t end, float* y) const {
    constexpr int64_t TILE = REGISTERS * kLanes;
    s.words.resize(words_of<Bfloat16>(c.H) * TILE);
    Columns of;
    Bfloat16::narrow(h, c.H, TILE, false, of, s.words.data());
    hotrows::product<Bfloat16, CODE, REGISTERS>(s.words.data(), c.H, c.narrow, first, nullptr, o, end, y);
  }
  void sigmoids(float* y, int64_t n) const {
    for (int64_t i = 0; i < n; i += kLanes) store_full(y + i, sigmoid(load_full(y + i) * 2.0f));
  }
  Vec tanh(Vec x) const { return sigmoid(x * 4.0f) * 2.0f - 1.0f; }
  static Vec add(Vec a, Vec b, Vec c) { return fma_once(a, b, c); }
};

// `count` samples of a list of L steps, in REGISTERS; attention: those of its first sample, L apart; out: [count, H].
template <class STEP, int REGISTERS>
void run(const Cells& c, const float* parts, int64_t L, const float* attention, int64_t count, Scratch& s, float* out) {
  constexpr int64_t TILE = REGISTERS * kLanes;
  const int64_t H = c.H;
  const STEP step{c};
  s.h.assign(H * TILE, 0.0f), s.y.resize(3 * H * TILE), s.weights.resize(padded(L) * TILE);
  transpose(attention, L, count, L, s.weights.data(), TILE);
  float *h = s.h.data(), *y = s.y.data(), *n = y + 2 * H * TILE;
  for (int64_t t = 0; t < L; ++t) {
    const float *first = &s.begins[t * 3 * H], *x = parts + t * 3 * H + 2 * H, *a = &s.weights[t * TILE];
    step.product(h, s, first, 0, c.after ? 3 * H : 2 * H, y);
    step.sigmoids(y, 2 * H * TILE);
    if (!c.after) {
      for (int64_t i = 0; i < H * TILE; i += kLanes) store_full(y + i, load_full(y + i) * load_full(h + i));
      step.product(y, s, first, 2 * H, 3 * H, y);
    }
    for (int64_t j = 0; j < H; ++j)
      for (int64_t k = j * TILE; k < (j + 1) * TILE; k += kLanes) {
        const Vec q = load_full(n + k), old = load_full(h + k);
        const Vec candidate = step.tanh(c.after ? STEP::add(load_full(y + k), q, spread(x[j])) : q);
        const Vec of = share(c.kind, load_full(y + H * TILE + k), load_full(a + k - j * TILE));
        store_full(h + k, STEP::add(of, candidate - old, old));
      }
  }
  for (int64_t b = 0; b < count; ++b)
    for (int64_t j = 0; j < H; ++j) out[b * H + j] = h[j * TILE + b];
}

// Of all samples; TWO and ONE: steps in so many registers.
template <class TWO, class ONE>
void run_all(const Cells& c, const SharedLists& lists, const float* attention, float* out) {
  const std::vector<SampleBlock> blocks = blocks_of(lists, 2 * kLanes);
#pragma omp parallel
  {
    Scratch scratch;
#pragma omp for schedule(dynamic)
    for (size_t n = 0; n < blocks.size(); ++n) {
      const auto [r, b, count] = blocks[n];
      const int64_t L = lists.size(r);
      const float *of = c.parts + lists.offsets[r] * 3 * c.H, *a = attention + lists.at(r, b);
      if (scratch.list != r) begin(c, of, L, scratch.begins), scratch.list = r;
      if (count > kLanes)
        run<TWO, 2>(c, of, L, a, count, scratch, out + b * c.H);
      else
        run<ONE, 1>(c, of, L, a, count, scratch, out + b * c.H);
    }
  }
}

}  // namespace

// parts: [N, 3H] of the lists, attention: [N'] of every sample's list; weight: [3H, H], bias: [3H]; kind: a
// RecurrentKind with attention; after: whether the reset gate comes after the candidate's product; bits: 32 or 16, and
// plain: without the instructions for 16. out: [B, H], zeros where a list is empty.
HOTROWS_API void hotrows_last_states(const float* parts, const float* attention, const int64_t* ends,
                                     const int64_t* offsets, const int64_t* starts, int64_t R, const float* weight,
                                     const float* bias, int64_t H, int64_t kind, int64_t after, int64_t bits,
                                     int64_t plain, float* out) {
  const SharedLists lists{ends, offsets, starts, R};
  Cells c{H, static_cast<Kind>(kind), after != 0, {}, parts, bias, {}};
  c.turned.resize(H * c.P());
  for (int64_t o = 0; o < 3 * H; ++o)
    for (int64_t i = 0; i < H; ++i) c.turned[i * c.P() + o] = weight[o * H + i];
  if (bits == 32) return run_all<Whole<2>, Whole<1>>(c, lists, attention, out);
  c.narrow.words.resize(words_of<Bfloat16>(H) * c.P());
  Bfloat16::narrow(c.turned.data(), H, c.P(), false, c.narrow, c.narrow.words.data());
#if defined(__AVX512F__)
  using Native = Bfloat16::Native;
  if (!plain && is_native<Bfloat16>())
    return run_all<Narrow<Native, 2>, Narrow<Native, 1>>(c, lists, attention, out);
#endif
  using Plain = Bfloat16::Plain;
  (void)plain;
  run_all<Narrow<Plain, 2>, Narrow<Plain, 1>>(c, lists, attention, out);
}
