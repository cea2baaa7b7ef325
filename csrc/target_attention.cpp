// Target attention of DIN in one function, forward and backward: first layer, hidden layers, scores, softmax and
// weighted sum. Events go through all layers in tiles that stay in the caches; the way back computes the layers of
// a tile again, so that a batch holds one number an event, its weight.
//
//   h_1 = f(M k_n + c), h_l = f(W_l h_l-1 + b_l), s_n = scale (w h_L + b)      target_projection.h has the first
//   p = softmax(s) over the sample's events, or s itself;  out_b = sum of p_n k_n
//
// A tile has events of one or several samples, one after the other: whole lists where they are short. Sums over
// events are made tile by tile within a chunk of samples, and chunk after chunk: no bit depends on the threads.
#include <limits>
#include <memory>

#include "codes.h"
#include "lanes.h"
#include "target_projection.h"
#include "weighted_sums.h"

namespace {

using namespace hotrows;

constexpr int64_t kTile = 64, kSlack = 8;  // products take whole blocks of rows, those behind the last for nothing
constexpr int64_t kLong = 24;              // events of a list that goes forward in lanes (lanes.h)
constexpr int64_t kAtOnce = 8;             // of its samples

struct Layer {
  int64_t in, out;
  Floats weight, turned, bias;  // [in, padded out], [out, padded in], [padded out]
};

// What the caller has of the layers behind the first: of each its weight [out, in] and bias; the last has one output.
struct Network {
  std::vector<Layer> layers;
  std::vector<Floats> slopes;  // of PReLUs: [padded size], one for each hidden layer
  TargetActivation activation;
  float scale;
  bool normalized;

  Network(const int64_t* sizes, int64_t count, const float* parameters, const float* of_slopes, int64_t kind,
          float scale, bool normalized)
      : activation(static_cast<TargetActivation>(kind)), scale(scale), normalized(normalized) {
    for (int64_t l = 0; l < count; ++l) {
      const int64_t in = sizes[l], out = l + 1 < count ? sizes[l + 1] : 1, P = padded(out), E = padded(in);
      Layer layer{in, out, Floats(in * P), Floats(out * E), Floats(P)};
      for (int64_t o = 0; o < out; ++o)
        for (int64_t i = 0; i < in; ++i) layer.weight[i * P + o] = layer.turned[o * E + i] = parameters[o * in + i];
      std::copy_n(parameters + in * out, out, layer.bias.data());
      parameters += in * out + out;
      layers.push_back(std::move(layer));
      slopes.emplace_back(padded(in));
      if (of_slopes) std::copy_n(of_slopes, in, slopes.back().data()), of_slopes += in;
    }
  }
  int64_t count() const { return static_cast<int64_t>(layers.size()); }
  int64_t width(int64_t l) const { return padded(layers[l].in); }  // of hidden layer l
  bool reads_inputs() const { return activation == TargetActivation::prelu; }
};

// Where a chunk of samples adds to each gradient: the first layer, then weight and bias of the others, then slopes.
struct Places {
  int64_t size;
  std::vector<int64_t> weights, slopes;
  Places(const Shape& s, const Network& net) : size(Part::size(s)) {
    for (const Layer& layer : net.layers) weights.push_back(size), size += (layer.in + 1) * padded(layer.out);
    for (const Layer& layer : net.layers) slopes.push_back(size), size += padded(layer.in);
  }
};

// Events of one sample in a tile, from row `row` on: `count` keys from `key`, whose weights are at `at`.
struct Segment {
  int64_t b, key, at, row, count;
  bool is_first, is_last, adds;  // of the sample's; whether a sample before has written the keys' gradients
};

// Of one thread: the tile's layers, before and behind their activations, and the gradients of two layers.
struct Tile {
  std::vector<Floats> before, behind;
  Floats matrix, scores, grad, other;
  std::vector<Segment> segments;
  int64_t used = 0;

  Tile(const Shape& s, const Network& net) : matrix(s.size()), scores(kTile + kSlack) {
    int64_t widest = kLanes;
    for (int64_t l = 0; l < net.count(); ++l) {
      const int64_t size = (kTile + kSlack) * net.width(l);
      before.emplace_back(net.reads_inputs() ? size : 0);
      behind.emplace_back(size);
      widest = std::max(widest, net.width(l));
    }
    grad.resize((kTile + kSlack) * widest), other.resize((kTile + kSlack) * widest);
  }
  float* inputs(int64_t l) { return (before[l].empty() ? behind[l] : before[l]).data(); }
  int64_t rows() const { return (used + kSlack - 1) / kSlack * kSlack; }  // whole blocks
};

// Of n values, whole registers; slope(i): those of a PReLU from value i on.
template <class Slope>
void activate(TargetActivation activation, const float* from, int64_t n, float* to, Slope slope) {
  const auto all = [&](auto f) {
    for (int64_t i = 0; i < n; i += kLanes) store_full(to + i, f(load_full(from + i), i));
  };
  switch (activation) {
    case TargetActivation::sigmoid: return sigmoid_all(from, n, to);
    case TargetActivation::relu: return all([](Vec x, auto) { return x < 0.0f ? Vec{} : x; });
    case TargetActivation::tanh: return all([](Vec x, auto) { return tanh(x); });
    case TargetActivation::none: return;
    case TargetActivation::prelu: return all([&](Vec x, int64_t i) { return x > 0.0f ? x : x * slope(i); });
  }
}

// The gradient before an activation from that behind it, in place; adds to those of the slopes and of the bias.
void activate_backward(const Network& net, int64_t l, Tile& t, float* grad, float* grad_slopes, float* grad_bias) {
  const int64_t P = net.width(l);
  const auto all = [&](auto f) {
    for (int64_t h = 0; h < P; h += kLanes) {
      Vec total = grad_bias ? load_full(grad_bias + h) : Vec{};
      for (int64_t n = h; n < t.used * P; n += P) {
        const Vec g = f(load_full(grad + n), load_full(&t.behind[l][n]), n, h);
        store_full(grad + n, g);
        total += g;
      }
      if (grad_bias) store_full(grad_bias + h, total);
    }
  };
  switch (net.activation) {
    case TargetActivation::sigmoid: return all([](Vec g, Vec y, auto, auto) { return g * ((1.0f - y) * y); });
    case TargetActivation::relu: return all([](Vec g, Vec y, auto, auto) { return y <= 0.0f ? Vec{} : g; });
    case TargetActivation::tanh: return all([](Vec g, Vec y, auto, auto) { return g * (1.0f - y * y); });
    case TargetActivation::none: return all([](Vec g, Vec, auto, auto) { return g; });
    case TargetActivation::prelu:
      return all([&](Vec g, Vec, int64_t n, int64_t h) {
        const Vec x = load_full(&t.before[l][n]), slopes = load_full(grad_slopes + h);
        store_full(grad_slopes + h, slopes + (x > 0.0f ? Vec{} : g * x));
        return x > 0.0f ? g : g * load_full(&net.slopes[l][h]);
      });
  }
}

inline float dot(const float* a, const float* b, int64_t n) {
  Vec total = {};
  for (int64_t i = 0; i < n; i += kLanes) total = fma(load(a + i, n - i), load(b + i, n - i), total);
  return sum(total);
}

struct Attention {
  const float *queries, *keys;
  const SharedLists& lists;
  const Weights& w;
  const Shape& s;
  const Network& net;
  const float* bias;  // [P]

  // Terms c of the queries of samples [first, end): [samples, P].
  void terms(int64_t first, int64_t end, Floats& out) const {
    out.resize((end - first) * s.P());
    copy_rows(bias, 0, end - first, s.P(), out.data(), s.P());
    multiply(queries + first * s.D, {s.D, 1}, w.query.data(), s.P(), end - first, s.D, s.P(), out.data(), s.P(), true);
  }

  // Fills tiles with the events of requests [begin, last), of lists shorter than `end`; finish(tile) is called for each.
  template <class Finish>
  void tiles(int64_t begin, int64_t last, const Floats& terms, Tile& t, int64_t end, Finish finish) const {
    const int64_t first = lists.first(begin), P = s.P(), num_keys = lists.offsets[lists.R];
    const auto done = [&] {
      layers(t);
      finish(t);
      t.segments.clear(), t.used = 0;
    };
    for (int64_t r = begin; r < last; ++r) {
      lists.check(r);
      const int64_t size = lists.size(r);
      for (int64_t b = lists.first(r); size < end && b < lists.first(r + 1); ++b) {
        if (size > 0) matrix_of(queries + b * s.D, w, s, t.matrix.data());
        for (int64_t n = 0, rows; n < size; n += rows) {
          rows = std::min(kTile - t.used, size - n);
          const int64_t key = lists.offsets[r] + n;
          // Up to a whole block: of keys behind, in rows that the next segment writes anew.
          const int64_t block = std::min((rows + kSlack - 1) / kSlack * kSlack, num_keys - key);
          float* y = t.inputs(0) + t.used * P;
          prefetch_rows(keys + key * s.D, block * s.D);
          copy_rows(&terms[(b - first) * P], 0, block, P, y, P);
          multiply(keys + key * s.D, {s.D, 1}, t.matrix.data(), P, block, s.D, P, y, P, true);
          t.segments.push_back({b, key, lists.at(r, b) + n, t.used, rows, n == 0, n + rows == size, b > lists.first(r)});
          t.used += rows;
          if (t.used == kTile) done();
        }
      }
    }
    if (t.used > 0) done();
  }

  // All layers of a tile, and its scores.
  void layers(Tile& t) const {
    const int64_t rows = t.rows();
    for (int64_t l = 0; l < net.count(); ++l) {
      const float* slopes = net.slopes[l].data();
      activate(net.activation, t.inputs(l), rows * net.width(l), t.behind[l].data(),
               [&, P = net.width(l)](int64_t i) { return load_full(slopes + i % P); });
      const Layer& layer = net.layers[l];
      const int64_t E = net.width(l);
      if (l + 1 < net.count()) {
        const int64_t P = padded(layer.out);
        copy_rows(layer.bias.data(), 0, rows, P, t.inputs(l + 1), P);
        multiply(t.behind[l].data(), {E, 1}, layer.weight.data(), P, rows, layer.in, P, t.inputs(l + 1), P, true);
      } else {
        for (int64_t n = 0; n < t.used; ++n)
          t.scores[n] = net.scale * (dot(&t.behind[l][n * E], layer.turned.data(), E) + layer.bias[0]);
      }
    }
  }
};

// Of one thread: the keys of a request in lanes, and the layers of a tile.
struct Lanes {
  Floats keys, terms, matrix, rows[2];
  int64_t request = -1;

  Lanes(const Shape& s, const Network& net) : terms(kAtOnce * s.P()), matrix(s.size()) {
    int64_t widest = 1;
    for (const Layer& layer : net.layers) widest = std::max(widest, layer.in);
    for (Floats& of : rows) of.resize(2 * kLanes * widest);
  }
};

// The scores of a tile of REGISTERS of events, whose keys in lanes begin at `keys`.
template <int REGISTERS>
void lane_scores(const Attention& a, const float* keys, const float* term, Lanes& t, float* scores) {
  constexpr int64_t TILE = REGISTERS * kLanes;
  const Network& net = a.net;
  float *x = t.rows[0].data(), *y = t.rows[1].data();
  rows_of<REGISTERS>(keys, a.s.D, t.matrix.data(), a.s.P(), term, a.s.H, x);
  for (int64_t l = 0; l < net.count(); ++l, std::swap(x, y)) {
    const Layer& layer = net.layers[l];
    activate(net.activation, x, TILE * layer.in, x, [&](int64_t i) { return spread(net.slopes[l][i / TILE]); });
    rows_of<REGISTERS>(x, layer.in, layer.weight.data(), padded(layer.out), layer.bias.data(), layer.out, y);
  }
  for (int64_t r = 0; r < TILE; r += kLanes) store_full(scores + r, load_full(x + r) * net.scale);
}

// Weights and sums of the samples of request r from b on, `count`, at most kAtOnce.
void in_lanes(const Attention& a, int64_t r, int64_t b, int64_t count, Lanes& t, float* weights, float* out) {
  constexpr int64_t TILE = 2 * kLanes;
  const int64_t size = a.lists.size(r), D = a.s.D;
  const float* keys = a.keys + a.lists.offsets[r] * D;
  if (t.request != r) lay_in_lanes(keys, size, D, t.keys), t.request = r;
  a.terms(b, b + count, t.terms);
  for (int64_t i = 0; i < count; ++i) {
    const float* term = &t.terms[i * a.s.P()];
    float *of = weights + a.lists.at(r, b + i), scores[TILE];
    matrix_of(a.queries + (b + i) * D, a.w, a.s, t.matrix.data());
    for (int64_t n = 0; n < size; n += TILE) {
      const float* tile = &t.keys[n * D];
      if (size - n > kLanes)
        lane_scores<2>(a, tile, term, t, scores);
      else
        lane_scores<1>(a, tile, term, t, scores);
      std::copy_n(scores, std::min(TILE, size - n), of + n);
    }
    if (a.net.normalized) softmax(of, size, of);
    if (out) weighted_sum(of, keys, size, D, out + (b + i) * D);
  }
}

void forward(const Attention& a, float* weights, float* out) {
  const Chunks chunks{a.lists.ends, a.lists.R};
  if (kChecks) chunks.check_all();
  // Long lists: blocks of a few samples, so that those of a single request are for all threads.
  const std::vector<SampleBlock> blocks = blocks_of(a.lists, kAtOnce, kLong);
#pragma omp parallel
  {
    Tile tile(a.s, a.net);
    Lanes lanes(a.s, a.net);
    Floats terms;
#pragma omp for schedule(dynamic) nowait
    for (size_t n = 0; n < blocks.size(); ++n)
      in_lanes(a, blocks[n].r, blocks[n].b, blocks[n].count, lanes, weights, out);
#pragma omp for schedule(dynamic)
    for (int64_t c = 0; c < chunks.count(); ++c) {
      const int64_t begin = chunks.first(c), last = chunks.first(c + 1);
      a.terms(a.lists.first(begin), a.lists.first(last), terms);
      a.tiles(begin, last, terms, tile, kLong, [&](const Tile& t) {
        for (const Segment& x : t.segments) std::copy_n(&t.scores[x.row], x.count, weights + x.at);
      });
      for (int64_t r = begin; r < last; ++r)
        for (int64_t b = a.lists.first(r); a.lists.size(r) < kLong && b < a.lists.first(r + 1); ++b) {
          const int64_t size = a.lists.size(r);
          float* of = weights + a.lists.at(r, b);
          if (a.net.normalized && size > 0) softmax(of, size, of);
          if (out) weighted_sum(of, a.keys + a.lists.offsets[r] * a.s.D, size, a.s.D, out + b * a.s.D);
        }
    }
  }
}

struct Backward {
  const Attention& a;
  const float *weights, *out, *grad_out, *grad_weights;  // grad_out and out, or grad_weights
  const Places& places;
  float *grad_queries, *grad_keys;

  // Of the scores of a tile, into t.scores, but for the scale.
  void scores_of(Tile& t, const Floats& means, int64_t first) const {
    const int64_t D = a.s.D;
    for (const Segment& x : t.segments)
      for (int64_t i = 0; i < x.count; ++i) {
        const float by_weight = grad_weights ? grad_weights[x.at + i]
                                             : dot(grad_out + x.b * D, a.keys + (x.key + i) * D, D);
        t.scores[x.row + i] =
            a.net.normalized ? weights[x.at + i] * (by_weight - means[x.b - first]) : by_weight;
      }
  }

  // The gradient of the first layer's outputs, [used, P], from that of the scores; adds to those of other layers.
  const float* layers(Tile& t, float* part) const {
    const Network& net = a.net;
    float *grad = t.grad.data(), *other = t.other.data();
    for (int64_t l = net.count() - 1; l >= 0; --l) {
      const Layer& layer = net.layers[l];
      const int64_t E = net.width(l), P = padded(layer.out);
      float *to = part + places.weights[l], *of_bias = to + layer.in * P;
      if (l + 1 == net.count()) {  // one output: to is [in, P], of which the first column counts
        for (int64_t n = 0; n < t.used; ++n) *of_bias += t.scores[n] *= net.scale;
        for (int64_t h = 0; h < E; h += kLanes) {
          const Vec row = load_full(&layer.turned[h]);
          Vec total = {};
          for (int64_t n = 0; n < t.used; ++n) {
            const Vec g = spread(t.scores[n]);
            total = fma(g, load_full(&t.behind[l][n * E + h]), total);
            store_full(other + n * E + h, g * row);
          }
          for (int64_t i = h; i < std::min(h + kLanes, layer.in); ++i) to[i * P] += total[i - h];
        }
      } else {
        multiply(t.behind[l].data(), {1, E}, grad, P, layer.in, t.used, P, to, P, true);
        multiply(grad, {P, 1}, layer.turned.data(), E, t.rows(), layer.out, E, other, E, false);
      }
      float* bias_before = l > 0 ? part + places.weights[l - 1] + net.layers[l - 1].in * E : nullptr;
      activate_backward(net, l, t, other, part + places.slopes[l], bias_before);
      std::swap(grad, other);
    }
    return grad;
  }

  // All that the first layer passes on of a tile's g: [used, P].
  void first_layer(const Tile& t, const float* g, int64_t first, Part part, Floats& terms,
                   Floats& sums, Floats& turned, Floats& keys_tile) const {
    const int64_t P = a.s.P(), E = a.s.E(), D = a.s.D;
    for (const Segment& x : t.segments) {
      const float *from = g + x.row * P, *key = a.keys + x.key * D, *query = a.queries + x.b * D;
      multiply(key, {1, D}, from, P, D, x.count, P, sums.data(), P, !x.is_first);
      if (x.is_last) weights_of(query, sums.data(), a.w, a.s, part, grad_queries + x.b * D);
      float* term = &terms[(x.b - first) * P];
      for (int64_t h = 0; h < P; h += kLanes) {
        Vec total = load_full(term + h);
        for (int64_t i = 0; i < x.count; ++i) total += load_full(from + i * P + h);
        store_full(term + h, total);
      }
      Floats& padded_query = keys_tile;  // [E] behind the tile
      float* q = &padded_query[(kTile + kSlack) * E];
      copy_rows(query, D, 1, D, q, E);
      turned_matrix_of(q, a.w, a.s, turned.data());
      float *of_keys = grad_keys + x.key * D, *to = D == E ? of_keys : keys_tile.data();
      for (int64_t i = 0; i < x.count; ++i)
        for (int64_t d = 0; d < E; d += kLanes) {
          Vec v = x.adds ? load(of_keys + i * D + d, D - d) : Vec{};
          if (grad_out) v = fma(spread(weights[x.at + i]), load(grad_out + x.b * D + d, D - d), v);
          store_full(to + i * E + d, v);
        }
      multiply(from, {P, 1}, turned.data(), E, x.count, a.s.H, E, to, E, true);
      if (D != E) copy_rows(to, E, x.count, D, of_keys, D);
    }
  }

  void run(float* parts, const Chunks& chunks) const {
    const Shape& s = a.s;
    const int64_t P = s.P(), E = s.E(), D = s.D;
#pragma omp parallel
    {
      Tile tile(s, a.net);
      Floats terms, grad_terms, means, sums(s.size()), turned(s.H * E), keys_tile((kTile + kSlack + 1) * E), scratch;
#pragma omp for schedule(dynamic)
      for (int64_t c = 0; c < chunks.count(); ++c) {
        const int64_t begin = chunks.first(c), last = chunks.first(c + 1);
        const int64_t first = a.lists.first(begin), end = a.lists.first(last);
        float* at = parts + c * places.size;
        const Part part(at, s);
        std::fill(at, at + places.size, 0.0f);
        std::fill(grad_queries + first * D, grad_queries + end * D, 0.0f);
        grad_terms.assign((end - first) * P, 0.0f), means.assign(end - first, 0.0f);
        for (int64_t r = begin; a.net.normalized && r < last; ++r)
          for (int64_t b = a.lists.first(r); b < a.lists.first(r + 1); ++b) {
            const int64_t n = a.lists.at(r, b);
            means[b - first] = grad_weights ? dot(grad_weights + n, weights + n, a.lists.size(r))
                                            : dot(grad_out + b * D, out + b * D, D);
          }
        a.terms(first, end, terms);
        a.tiles(begin, last, terms, tile, std::numeric_limits<int64_t>::max(), [&](Tile& t) {
          scores_of(t, means, first);
          first_layer(t, layers(t, at), first, part, grad_terms, sums, turned, keys_tile);
        });
        scratch.resize((end - first) * E);
        terms_of(a.queries + first * D, grad_terms.data(), end - first, a.w, s, part, scratch.data(), grad_queries + first * D);
      }
    }
  }
};

// The sums of the chunks, one after the other, as the caller has them.
void write_gradients(const float* parts, int64_t count, const Places& places, const Shape& s, const Network& net,
                     float* grad_weight, float* grad_bias, float* grad_parameters, float* grad_slopes) {
  Floats total(places.size);
  for (int64_t c = 0; c < count; ++c)
    for (int64_t n = 0; n < places.size; ++n) total[n] += parts[c * places.size + n];
  for (int64_t d = 0; d < s.D; ++d) write_weights(total.data(), places.size, 1, s, d, grad_weight);
  std::copy_n(Part(total.data(), s).bias, s.H, grad_bias);
  for (int64_t l = 0; l < net.count(); ++l) {
    const Layer& layer = net.layers[l];
    const int64_t P = padded(layer.out);
    const float* from = &total[places.weights[l]];
    for (int64_t o = 0; o < layer.out; ++o)
      for (int64_t i = 0; i < layer.in; ++i) *grad_parameters++ = from[i * P + o];
    grad_parameters = std::copy_n(from + layer.in * P, layer.out, grad_parameters);
    if (grad_slopes) grad_slopes = std::copy_n(&total[places.slopes[l]], layer.in, grad_slopes);
  }
}

}  // namespace

// queries: [B, D], keys: [N, D] of `SharedLists`; weight: [H, 4D] and bias: [H] of the first layer; sizes: of the
// hidden layers, `count`, the first one H; parameters and slopes: see Network. weights: [N'], of every sample's list;
// out: [B, D], or null where the weights are what is asked for.
HOTROWS_API void hotrows_target_attention(const float* queries, const float* keys, const int64_t* ends,
                                          const int64_t* offsets, const int64_t* starts, int64_t R, int64_t D,
                                          const float* weight, const float* bias, const int64_t* sizes,
                                          int64_t count, const float* parameters, const float* slopes,
                                          int64_t activation, float scale, int64_t normalized, float* weights,
                                          float* out) {
  const Shape s{D, sizes[0]};
  const Weights w(weight, s, false);
  const Network net(sizes, count, parameters, slopes, activation, scale, normalized);
  const SharedLists lists{ends, offsets, starts, R};
  Floats padded_bias(s.P());
  std::copy_n(bias, s.H, padded_bias.data());
  forward(Attention{queries, keys, lists, w, s, net, padded_bias.data()}, weights, out);
}

// The gradients from that of out, or of the weights, whichever is not null.
HOTROWS_API void hotrows_target_attention_backward(
    const float* grad_out, const float* grad_weights, const float* weights, const float* out, const float* queries,
    const float* keys, const int64_t* ends, const int64_t* offsets, const int64_t* starts, int64_t R, int64_t D,
    const float* weight, const float* bias, const int64_t* sizes, int64_t count, const float* parameters,
    const float* slopes, int64_t activation, float scale, int64_t normalized, float* grad_queries, float* grad_keys,
    float* grad_weight, float* grad_bias, float* grad_parameters, float* grad_slopes) {
  const Shape s{D, sizes[0]};
  const Weights w(weight, s, true);
  const Network net(sizes, count, parameters, slopes, activation, scale, normalized);
  const SharedLists lists{ends, offsets, starts, R};
  const Places places(s, net);
  Floats padded_bias(s.P());
  std::copy_n(bias, s.H, padded_bias.data());
  const Attention attention{queries, keys, lists, w, s, net, padded_bias.data()};
  const Chunks chunks{lists.ends, lists.R};
  if (kChecks) chunks.check_all();
  const std::unique_ptr<float[]> parts(new float[chunks.count() * places.size]);
  Backward{attention, weights, out, grad_out, grad_weights, places, grad_queries, grad_keys}.run(parts.get(), chunks);
  write_gradients(parts.get(), chunks.count(), places, s, net, grad_weight, grad_bias, grad_parameters, grad_slopes);
}
