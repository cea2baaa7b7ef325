// Target attention (target_attention.cpp) forward, with products of 16 or 8 bits (narrow.h): events in lanes, a tile
// of them through all layers. Scores are bit-identical at every level of instructions. The softmax and the sums of keys
// are float32, and are not.
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

// The table has the sigmoid of u / 2; tanh x = 2 sigmoid(2 x) - 1.
inline float factor_of(TargetActivation activation) {
  return activation == TargetActivation::sigmoid ? 2 : activation == TargetActivation::tanh ? 4 : 1;
}

template <class F>
struct Network {
  using Format = F;
  std::vector<Layer> layers;  // behind the first
  std::vector<const float*> slopes;
  TargetActivation activation;
  float scale, factor, wrong = 0;  // factor: of what the activation reads; wrong: NaN if a parameter is
  bool normalized;
  SigmoidTable table{F::size_of_sigmoid()};

  Network(const int64_t* sizes, int64_t count, const float* parameters, const float* of_slopes, int64_t kind,
          float scale, bool normalized)
      : activation(static_cast<TargetActivation>(kind)), scale(scale),
        factor(factor_of(activation)), normalized(normalized) {
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
      for (float x : layer.bias) wrong += x * 0.0f;
      std::fill(layer.w.sums.begin(), layer.w.sums.end(), 0);  // its events mean what they are
      parameters += in * out + out;
      layers.push_back(std::move(layer));
      slopes.push_back(of_slopes);
      if (of_slopes) of_slopes += in;
    }
  }
};

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
    if (net.activation == TargetActivation::tanh) each([&](Vec u, auto) { return sigmoid(u) * 2.0f - 1.0f; }, join);
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
    t.keys.resize(W * padded(size)), t.scales.resize(padded(size)), t.request = r;
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
    product<F, CODE, REGISTERS>(&t.keys[n * words_of<F>(s.D)], s.D, t.first, t.terms.data(), &t.scales[n], 0,
                                s.H, t.y.data());
    for (size_t l = 0; l < net.layers.size(); ++l) {
      const Layer& layer = net.layers[l];
      activate<F, REGISTERS>(net, net.slopes[l], layer.in, t.y.data(), t.words.data());
      product<F, CODE, REGISTERS>(t.words.data(), layer.in, layer.w, layer.bias.data(), t.ones.data(), 0,
                                  layer.out, t.y.data());
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
      const float wrong = size > 0 ? first_layer(b, t) : 0.0f;
      for (int64_t n = 0; n < size; n += kTile) {
        size - n > kLanes ? scores<2>(n, wrong, t, out) : scores<1>(n, wrong, t, out);
        std::copy_n(out, std::min(kTile, size - n), of + n);
      }
      if (net.normalized && size > 0) softmax(of, size, of);
      if (sums) weighted_sum(of, keys + lists.offsets[r] * s.D, size, s.D, sums + b * s.D);
    }
  }

  void forward(float* weights, float* sums) const {
    const std::vector<SampleBlock> blocks = blocks_of(lists, kAtOnce);
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

template <class F, class... Inputs>
void run(bool plain, float* weights, float* out, const Inputs&... inputs) {
#if defined(__AVX512F__)
  if (!plain && is_native<F>()) return Attention<F, typename F::Native>{inputs...}.forward(weights, out);
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
