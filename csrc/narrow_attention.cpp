// Target attention (target_attention.cpp) forward, with products of 16 or 8 bits (narrow.h): events in lanes, a tile
// of them through all layers. Scores have the bits of their definition at every level of instructions; the softmax and
// the sums of keys are float32, as ever.
#include <cmath>

#include "codes.h"
#include "narrow.h"
#include "target_projection.h"
#include "weighted_sums.h"

namespace {

using namespace hotrows;

constexpr int64_t kAtOnce = 8;  // samples of a list at a time
constexpr int64_t kTile = 2 * kLanes;

// out[o] = sum over i of in[i] w[i, o] + bias[o], with w: [words, padded out].
struct Layer {
  int64_t in, out;
  Columns w;
  Floats bias;
};

template <class F>
int64_t words_of(int64_t n) {
  return (n + F::kPer - 1) / F::kPer;
}

template <class F>
struct Network {
  using Format = F;
  std::vector<Layer> layers;  // behind the first
  std::vector<const float*> slopes;
  TargetActivation activation;
  float scale, factor, wrong = 0;  // factor: of what a sigmoid reads; wrong: NaN if a parameter is
  bool normalized;
  SigmoidTable table{F::size_of_sigmoid()};

  Network(const int64_t* sizes, int64_t count, const float* parameters, const float* of_slopes, int64_t kind,
          float scale, bool normalized)
      : activation(static_cast<TargetActivation>(kind)), scale(scale),
        factor(activation == TargetActivation::sigmoid ? 2 : 1), normalized(normalized) {
    for (int64_t l = 0; l < count; ++l) {
      const int64_t in = sizes[l], out = l + 1 < count ? sizes[l + 1] : 1, P = padded(out);
      const float by = l + 1 < count ? factor : 1.0f;
      Floats turned(in * P);
      Layer layer{in, out, {}, Floats(P)};
      for (int64_t o = 0; o < out; ++o)
        for (int64_t i = 0; i < in; ++i) turned[i * P + o] = by * parameters[o * in + i];
      for (int64_t o = 0; o < out; ++o) layer.bias[o] = by * parameters[in * out + o];
      for (int64_t o = 0; o < P; o += kLanes) store_full(&layer.bias[o], plain(load_full(&layer.bias[o])));
      layer.w.words.resize(words_of<F>(in) * P);
      F::narrow(turned.data(), in, P, false, layer.w, layer.w.words.data());
      for (float x : turned) wrong += x * 0.0f;
      std::fill(layer.w.sums.begin(), layer.w.sums.end(), 0);  // its events mean what they are
      parameters += in * out + out;
      layers.push_back(std::move(layer));
      slopes.push_back(of_slopes);
      if (of_slopes) of_slopes += in;
    }
  }
};

// y: [outputs, TILE] of x: [words, TILE]; scales: of events.
template <class F, class CODE, int REGISTERS, int OUTPUTS>
__attribute__((noinline)) void block(const uint32_t* x, int64_t words, const Columns& of, int64_t o, int64_t stride,
                                     const float* bias, const float* scales, float* y) {
  typename F::Sum sums[OUTPUTS][REGISTERS];
  const uint32_t* w = of.words.data() + o;
#pragma GCC unroll 16
  for (int k = 0; k < OUTPUTS; ++k)
#pragma GCC unroll 2
    for (int r = 0; r < REGISTERS; ++r) sums[k][r] = F::begin(of, bias, o + k);
  for (int64_t i = 0; i < words; ++i, x += REGISTERS * kLanes, w += stride) {
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
                 F::end(sums[k][r], of, bias, o + k, load_full(scales + r * kLanes)));
}

template <class F, class CODE, int REGISTERS, int OUTPUTS = kMostOutputs>
void block_of(int64_t outputs, const uint32_t* x, int64_t words, const Columns& of, int64_t o, int64_t stride,
              const float* bias, const float* scales, float* y) {
  if constexpr (OUTPUTS > 1)
    if (outputs < OUTPUTS)
      return block_of<F, CODE, REGISTERS, OUTPUTS - 1>(outputs, x, words, of, o, stride, bias, scales, y);
  block<F, CODE, REGISTERS, OUTPUTS>(x, words, of, o, stride, bias, scales, y);
}

template <class F, class CODE, int REGISTERS>
void product(const uint32_t* x, int64_t in, const Columns& of, const float* bias, const float* scales, int64_t out,
             float* y) {
  for (int64_t blocks = (out + kMostOutputs - 1) / kMostOutputs, o = 0; blocks > 0; --blocks) {
    const int64_t outputs = (out - o + blocks - 1) / blocks;
    block_of<F, CODE, REGISTERS>(outputs, x, words_of<F>(in), of, o, padded(out), bias, scales, y);
    o += outputs;
  }
}

// Of one thread: the keys of a request, a sample's first layer, and what a tile's layers make.
struct Scratch {
  Floats laid, scales, terms, matrix, ones, y;
  Words keys, words;
  Columns events, first;
  int64_t request = -1;
};

// [out, TILE] outputs become the words that the next layer reads: [words, TILE].
template <class F, int REGISTERS>
void activate(const Network<F>& net, const float* slopes, int64_t out, const float* y, uint32_t* words) {
  constexpr int64_t TILE = REGISTERS * kLanes;
  const SigmoidRows sigmoid(net.table);
  const auto each = [&](auto f, auto join) {
    for (int64_t o = 0; o < out; o += F::kPer, words += TILE)
      for (int64_t r = 0; r < TILE; r += kLanes) {
        Vec x[F::kPer] = {};
        for (int64_t k = 0; k < F::kPer; ++k)
          if (o + k < out) x[k] = f(load_full(y + (o + k) * TILE + r), o + k);
        store_words(words + r, join(x));
      }
  };
  if (net.activation == TargetActivation::sigmoid)
    return each([&](Vec u, auto) { return sigmoid(u); }, [](const Vec* x) { return F::join_sigmoids(x); });
  if constexpr (F::kPer == 2) {  // others have no bounds that 8 bits could share
    const auto join = [](const Vec* x) { return F::join(x); };
    if (net.activation == TargetActivation::relu) each([](Vec x, auto) { return x < 0.0f ? Vec{} : x; }, join);
    if (net.activation == TargetActivation::tanh) each([](Vec x, auto) { return hotrows::tanh(x); }, join);
    if (net.activation == TargetActivation::none) each([](Vec x, auto) { return x; }, join);
    if (net.activation == TargetActivation::prelu)
      each([&](Vec x, int64_t o) { return x > 0.0f ? x : x * slopes[o]; }, join);
  }
}

template <class F, class CODE>
struct Attention {
  const float *queries, *keys, *bias;
  const SharedLists& lists;
  const Weights& w;
  const Shape& s;
  const Network<F>& net;

  void lay(int64_t r, Scratch& t) const {
    const int64_t size = lists.size(r), W = words_of<F>(s.D);
    lay_in_lanes(keys + lists.offsets[r] * s.D, size, s.D, t.laid);
    t.keys.resize(W * padded(size)), t.scales.assign(padded(size) + kTile, 1.0f), t.request = r;
    for (int64_t n = 0; n < size; n += kTile) {
      const int64_t columns = std::min(kTile, padded(size - n));
      F::narrow(&t.laid[n * s.D], s.D, columns, true, t.events, &t.keys[n * W]);
      std::copy_n(t.events.scales.begin(), t.events.scales.size(), &t.scales[n]);
    }
  }

  // The first layer of sample b: its terms, and the matrix of its keys.
  float first_layer(int64_t b, Scratch& t) const {
    const int64_t P = s.P();
    const float* q = queries + b * s.D;
    const Vec by = spread(net.factor);
    t.terms.assign(bias, bias + P), t.matrix.resize(s.size());
    for (int64_t d = 0; d < s.D; ++d)
      for (int64_t h = 0, n = d * P; h < P; h += kLanes, n += kLanes) {
        const Vec query = spread(q[d]);
        store_full(&t.terms[h], load_full(&t.terms[h]) + query * load_full(&w.query[n]));
        store_full(&t.matrix[n], (load_full(&w.key[n]) + query * load_full(&w.product[n])) * by);
      }
    Vec wrong = {};
    for (int64_t h = 0; h < P; h += kLanes) {
      store_full(&t.terms[h], plain(load_full(&t.terms[h]) * by));
      wrong += load_full(&t.terms[h]) * 0.0f;
    }
    t.first.words.resize(words_of<F>(s.D) * P);
    F::narrow(t.matrix.data(), s.D, P, false, t.first, t.first.words.data());
    for (int32_t& x : t.first.sums) x *= -128;
    for (float x : t.first.scales) wrong[0] += x * 0.0f;
    return sum(wrong) + net.wrong;
  }

  template <int REGISTERS>
  void scores(int64_t n, float wrong, Scratch& t, float* out) const {
    constexpr int64_t TILE = REGISTERS * kLanes;
    product<F, CODE, REGISTERS>(&t.keys[n * words_of<F>(s.D)], s.D, t.first, t.terms.data(), &t.scales[n], s.H,
                                t.y.data());
    for (size_t l = 0; l < net.layers.size(); ++l) {
      const Layer& layer = net.layers[l];
      activate<F, REGISTERS>(net, net.slopes[l], layer.in, t.y.data(), t.words.data());
      product<F, CODE, REGISTERS>(t.words.data(), layer.in, layer.w, layer.bias.data(), t.ones.data(), layer.out,
                                  t.y.data());
    }
    for (int64_t r = 0; r < TILE; r += kLanes) {
      Vec x = load_full(&t.y[r]) * net.scale;
      if (F::kPer == 4) x += load_full(&t.scales[n + r]) * 0.0f + wrong;  // codes have no NaN
      store_full(out + r, x);
    }
  }

  // Weights and sums of the samples of request r from b on.
  void run(int64_t r, int64_t b, int64_t count, Scratch& t, float* weights, float* sums) const {
    const int64_t size = lists.size(r);
    if (t.request != r) lay(r, t);
    for (; count > 0; --count, ++b) {
      float *of = weights + lists.at(r, b), out[kTile];
      const float wrong = first_layer(b, t);
      for (int64_t n = 0; n < size; n += kTile) {
        size - n > kLanes ? scores<2>(n, wrong, t, out) : scores<1>(n, wrong, t, out);
        std::copy_n(out, std::min(kTile, size - n), of + n);
      }
      if (net.normalized && size > 0) softmax(of, size);
      if (sums) weighted_sum(of, keys + lists.offsets[r] * s.D, size, s.D, sums + b * s.D);
    }
  }

  void forward(float* weights, float* sums) const {
    struct Block {
      int64_t r, b, count;
    };
    std::vector<Block> blocks;
    for (int64_t r = 0; r < lists.R; ++r) {
      lists.check(r);
      for (int64_t b = lists.first(r), end = lists.first(r + 1); b < end; b += kAtOnce)
        blocks.push_back({r, b, std::min(kAtOnce, end - b)});
    }
    int64_t widest = 1;
    for (const Layer& layer : net.layers) widest = std::max(widest, layer.in);
#pragma omp parallel
    {
      Scratch t;
      t.y.resize(widest * kTile), t.words.resize(words_of<F>(widest) * kTile);
      t.ones.assign(kTile, static_cast<float>(1 / F::size_of_sigmoid()));
#pragma omp for schedule(dynamic)
      for (size_t n = 0; n < blocks.size(); ++n) run(blocks[n].r, blocks[n].b, blocks[n].count, t, weights, sums);
    }
  }
};

// Whether this processor has the instructions, and they compute as narrow.h does: in pairs, the odd one first.
template <class F>
bool is_native() {
#if defined(__AVX512F__)
  if (!__builtin_cpu_supports(F::kPer == 2 ? "avx512bf16" : "avx512vnni")) return false;
  if constexpr (F::kPer == 2) {
    const Bits x = Bits{} + 0x3F803F81u, w = Bits{} + 0xCB804B80u;
    const Vec sum = spread(0.33f);
    using P = Bfloat16::Plain;
    const Vec wrong = Bfloat16::Native::add(sum, x, w) - P::add(sum, P::open(x), P::open(w));
    return wrong[0] == 0;
  }
  return true;
#else
  return false;
#endif
}

template <class F, class... Inputs>
void run(bool plain, float* weights, float* out, const Inputs&... inputs) {
#if defined(__AVX512F__)
  static const bool native = is_native<F>();
  if (native && !plain) return Attention<F, typename F::Native>{inputs...}.forward(weights, out);
#endif
  (void)plain;
  Attention<F, typename F::Plain>{inputs...}.forward(weights, out);
}

}  // namespace

// What hotrows_target_attention has, and: bits, 16 or 8, of which 8 are for sigmoids alone; plain: without the
// instructions for them.
HOTROWS_API void hotrows_narrow_attention(const float* queries, const float* keys, const int64_t* ends,
                                          const int64_t* offsets, const int64_t* starts, int64_t R, int64_t D,
                                          const float* weight, const float* bias, const int64_t* sizes,
                                          int64_t count, const float* parameters, const float* slopes,
                                          int64_t activation, float scale, int64_t normalized, int64_t bits,
                                          int64_t plain, float* weights, float* out) {
  const Shape s{D, sizes[0]};
  const Weights w(weight, s, false);
  const SharedLists lists{ends, offsets, starts, R};
  Floats padded_bias(s.P());
  std::copy_n(bias, s.H, padded_bias.data());
  const float* of_first = padded_bias.data();
  const auto at = [&](auto net) {
    run<typename decltype(net)::Format>(plain != 0, weights, out, queries, keys, of_first, lists, w, s, net);
  };
  if (bits == 8)
    at(Network<Int8>(sizes, count, parameters, slopes, activation, scale, normalized != 0));
  else
    at(Network<Bfloat16>(sizes, count, parameters, slopes, activation, scale, normalized != 0));
}
