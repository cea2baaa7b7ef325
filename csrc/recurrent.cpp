// The recurrence of GRUs over lists of uneven length, plain and with attention, forward and backward.
//
// One sample is a chain of steps too small to fill the registers, so a thread runs a tile of samples
// side by side. They are of like length, the longest first, so those that still run are the first rows:
//
//   step      0 1 2 3 4 5
//   sample p  x x x x x x      forward    Y = H U^T [active, 3H], then gates, states, the next H
//   sample q  x x x x          backward   gates' gradients G, then dH += G U; G and H of many steps are
//   sample r  x x x                       kept, and dU += G^T H is made of all of them at once
//
// No thread waits for another. Forward writes the gates over the input parts: backward needs them and
// nothing needs the parts again. A sample's bits depend on nothing but the sample; gradients of weights
// are summed in chunks of tiles, which follow from the batch alone, and the chunks in their order.
#include "codes.h"
#include "matrix.h"
#include "vector_math.h"

namespace {

using namespace hotrows;

using Kind = RecurrentKind;

constexpr int64_t kTile = 32;    // samples side by side
constexpr int64_t kKept = 128;   // rows of gates' gradients between two products for the weights
constexpr int64_t kChunks = 32;  // of tiles, each summed by itself, whatever the number of threads

// What both directions read. parts and gates: [N, 3H], r, z and candidate side by side; inner: [N, H],
// the candidate's product and bias before the reset gate meets them.
struct Cells {
  const int64_t* offsets;
  int64_t B, H;
  const float* attention;  // [N]
  const float *weight, *bias;
  int64_t E() const { return padded(H); }
};

struct Tile {
  const int64_t* samples;  // by falling length
  int64_t size;
  const int64_t* offsets;
  int64_t length(int64_t s) const { return offsets[samples[s] + 1] - offsets[samples[s]]; }
  int64_t position(int64_t s, int64_t step) const { return offsets[samples[s]] + step; }
  int64_t active(int64_t step) const {
    int64_t rows = size;
    while (rows > 0 && length(rows - 1) <= step) --rows;
    CHECK(rows == 0 || length(0) > step, rows, step);  // the longest first
    return rows;
  }
};

std::vector<int64_t> longest_first(const int64_t* offsets, int64_t B) {
  CHECK(never_falls(offsets, B + 1) && offsets[0] == 0, B);
  std::vector<int64_t> samples(B);
  for (int64_t b = 0; b < B; ++b) samples[b] = b;
  std::stable_sort(samples.begin(), samples.end(), [&](int64_t a, int64_t b) {
    return offsets[a + 1] - offsets[a] > offsets[b + 1] - offsets[b];
  });
  return samples;
}

// The rows of a tile's next step lie one behind each sample's last: too many streams for the hardware.
inline void prefetch_row(const float* row, int64_t count) {
  for (int64_t i = 0; i < count; i += 16) prefetch(row + i);
}
inline void prefetch_row_for_write(const float* row, int64_t count) {
  for (int64_t i = 0; i < count; i += 16) prefetch_for_write(row + i);
}

int64_t num_tiles(int64_t B) { return (B + kTile - 1) / kTile; }

Tile tile_of(const Cells& c, const std::vector<int64_t>& samples, int64_t i) {
  return {samples.data() + i * kTile, std::min(kTile, c.B - i * kTile), c.offsets};
}

// How much of the candidate comes into the state: z keeps in `gru` and `augru_code`, renews in `augru`.
template <Kind KIND>
inline Vec share(Vec z, Vec a) {
  if (KIND == Kind::gru) return 1.0f - z;
  if (KIND == Kind::augru) return a * z;
  if (KIND == Kind::augru_code) return 1.0f - (1.0f - a) * z;
  return a;
}

// Its derivative by z.
template <Kind KIND>
inline Vec share_by_z(Vec a) {
  if (KIND == Kind::gru) return spread(-1.0f);
  if (KIND == Kind::augru) return a;
  if (KIND == Kind::augru_code) return a - 1.0f;
  return Vec{};
}

// The recurrent weights [3H, H] transposed, the candidate's columns at `candidate`, rows of `stride`.
struct Packed {
  int64_t candidate, stride;
  std::vector<float> w;
  Packed(const Cells& c, bool after)
      : candidate(after ? 2 * c.H : padded(2 * c.H)), stride(padded(candidate + c.H)), w(c.H * stride) {
    for (int64_t o = 0; o < 3 * c.H; ++o)
      for (int64_t i = 0; i < c.H; ++i)
        w[i * stride + (o < 2 * c.H ? o : o - 2 * c.H + candidate)] = c.weight[o * c.H + i];
  }
};

// One sample's step behind the products y: parts become gates, h the new state.
template <Kind KIND, bool AFTER>
inline void step(const Cells& c, const float* y, int64_t candidate, float a, float* parts, float* inner,
                 float* h, float* state) {
  const int64_t H = c.H;
  for (int64_t j = 0; j < H; j += kLanes) {
    const int64_t left = H - j;
    const auto gate = [&](int64_t at) {
      return sigmoid(load(parts + at, left) + (load_full(y + at) + load(c.bias + at, left)));
    };
    const Vec r = AFTER ? gate(j) : Vec{};
    const Vec z = KIND == Kind::agru ? Vec{} : gate(H + j);
    const Vec q = load_full(y + candidate + j) + load(c.bias + 2 * H + j, left);
    const Vec part = load(parts + 2 * H + j, left);
    const Vec n = hotrows::tanh(AFTER ? fma(r, q, part) : part + q);
    const Vec old = load_full(h + j);
    const Vec now = fma(share<KIND>(z, spread(a)), n - old, old);
    if (AFTER) store(parts + j, r, left);
    store(parts + H + j, z, left);
    store(parts + 2 * H + j, n, left);
    if (AFTER) store(inner + j, q, left);
    store_full(h + j, now);
    store(state + j, now, left);
  }
}

// Where the reset gate comes before the product: r over its part, and r * h.
inline void reset_before(const Cells& c, const float* y, float* parts, const float* h, float* reset) {
  for (int64_t j = 0; j < c.H; j += kLanes) {
    const int64_t left = c.H - j;
    const Vec r = sigmoid(load(parts + j, left) + (load_full(y + j) + load(c.bias + j, left)));
    store(parts + j, r, left);
    store_full(reset + j, r * load_full(h + j));
  }
}

template <Kind KIND, bool AFTER>
void forward_tile(const Cells& c, const Packed& w, const Tile& tile, float* parts, float* inner,
                  float* states) {
  const int64_t H = c.H, E = c.E(), S = w.stride;
  std::vector<float> h(kTile * E), reset(AFTER ? 0 : kTile * E), y(kTile * S + kLanes);
  for (int64_t t = 0; t < tile.length(0); ++t) {
    const int64_t active = tile.active(t);
    multiply(h.data(), {E, 1}, w.w.data(), S, active, H, AFTER ? S : w.candidate, y.data(), S, false);
    if (!AFTER) {
      for (int64_t s = 0; s < active; ++s)
        reset_before(c, &y[s * S], parts + tile.position(s, t) * 3 * H, &h[s * E], &reset[s * E]);
      multiply(reset.data(), {E, 1}, &w.w[w.candidate], S, active, H, E, &y[w.candidate], S, false);
    }
    for (int64_t s = 0; s < active; ++s) {
      const int64_t n = tile.position(s, t);
      prefetch_row_for_write(parts + (n + 1) * 3 * H, 3 * H);
      if (AFTER) prefetch_row_for_write(inner + (n + 1) * H, H);
      prefetch_row_for_write(states + (n + 1) * H, H);
      step<KIND, AFTER>(c, &y[s * S], w.candidate, c.attention ? c.attention[n] : 0, parts + n * 3 * H,
                        inner + n * H, &h[s * E], states + n * H);
    }
  }
}

template <Kind KIND, bool AFTER>
void forward(const Cells& c, float* parts, float* inner, float* states) {
  const std::vector<int64_t> samples = longest_first(c.offsets, c.B);
  const Packed w(c, AFTER);
#pragma omp parallel for schedule(dynamic)
  for (int64_t i = 0; i < num_tiles(c.B); ++i)
    forward_tile<KIND, AFTER>(c, w, tile_of(c, samples, i), parts, inner, states);
}

struct Saved {
  const float *grad_states, *states, *gates, *inner;
};
struct Gradients {
  float *parts, *attention;
};

// The sums over positions of one chunk: dU [3H, E], and [4H] the columns of r, z, the candidate's
// product, and the candidate itself.
struct Sums {
  std::vector<float> weight, bias;
};

// Gradients of the products of many steps, [rows, 3H], with the states that they were made from.
struct Kept {
  int64_t rows = 0;
  std::vector<float> grads, h, reset;  // reset: r * h, where it is the candidate's input
  Kept(const Cells& c, bool after)
      : grads(kKept * 3 * c.H), h(kKept * c.E()), reset(after ? 0 : kKept * c.E()) {}
};

void add_columns(const float* from, int64_t stride, int64_t rows, int64_t columns, float* sums) {
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) sums[j] += from[i * stride + j];
}

void flush(const Cells& c, bool after, Kept& kept, Sums& sums) {
  const int64_t H = c.H, E = c.E(), G = 3 * H;
  const int64_t from_h = after ? 3 * H : 2 * H;
  multiply(kept.grads.data(), {1, G}, kept.h.data(), E, from_h, kept.rows, E, sums.weight.data(), E, true);
  if (!after)
    multiply(&kept.grads[2 * H], {1, G}, kept.reset.data(), E, H, kept.rows, E, &sums.weight[2 * H * E], E,
             true);
  add_columns(kept.grads.data(), G, kept.rows, G, sums.bias.data());
  kept.rows = 0;
}

// One sample's step back, up to the products: from the gradient of its new state, dh, to those of the
// gates (`grads`, [3H]) and the part of the old state's gradient that passes them by.
template <Kind KIND, bool AFTER>
inline void step_back(const Cells& c, const Saved& saved, const Gradients& out, int64_t n, bool is_first,
                      float* dh, float* grads, float* h, float* sums) {
  const int64_t H = c.H;
  const float *gates = saved.gates + n * 3 * H, *before = saved.states + (n - 1) * H;
  const Vec a = spread(c.attention ? c.attention[n] : 0);
  float* parts = out.parts + n * 3 * H;
  Vec da = {};
  for (int64_t j = 0; j < H; j += kLanes) {
    const int64_t left = H - j;
    const Vec r = load(gates + j, left), z = load(gates + H + j, left), cand = load(gates + 2 * H + j, left);
    const Vec old = is_first ? Vec{} : load(before + j, left);
    const Vec g = load_full(dh + j) + load(saved.grad_states + n * H + j, left);
    const Vec mix = share<KIND>(z, a), dmix = g * (cand - old);

    if (KIND == Kind::augru || KIND == Kind::augru_code) da = fma(dmix, z, da);
    if (KIND == Kind::agru) da += dmix;
    const Vec dz = share_by_z<KIND>(a) * dmix * (z * (1.0f - z));
    const Vec dn = g * mix * (1.0f - cand * cand);
    store(parts + H + j, dz, left);
    store(grads + H + j, dz, left);
    store(parts + 2 * H + j, dn, left);
    store(grads + 2 * H + j, AFTER ? dn * r : dn, left);
    if (AFTER) {
      const Vec dr = dn * load(saved.inner + n * H + j, left) * (r * (1.0f - r));
      store(parts + j, dr, left);
      store(grads + j, dr, left);
      store(sums + 3 * H + j, load(sums + 3 * H + j, left) + dn, left);
    }
    store_full(h + j, old);
    store_full(dh + j, g * (1.0f - mix));
  }
  if (KIND != Kind::gru) out.attention[n] = sum(da);
}

// Where the reset gate comes before the product: from the gradient of r * h to those of r and h.
inline void reset_before_back(int64_t H, const float* gates, const float* h, const float* dreset,
                              float* parts, float* grads, float* reset, float* dh) {
  for (int64_t j = 0; j < H; j += kLanes) {
    const int64_t left = H - j;
    const Vec r = load(gates + j, left), old = load_full(h + j), d = load_full(dreset + j);
    const Vec dr = d * old * (r * (1.0f - r));
    store(parts + j, dr, left);
    store(grads + j, dr, left);
    store_full(reset + j, r * old);
    store_full(dh + j, fma(d, r, load_full(dh + j)));
  }
}

// w: [3H, E], the recurrent weights.
template <Kind KIND, bool AFTER>
void backward_tile(const Cells& c, const std::vector<float>& w, const Tile& tile, const Saved& saved,
                   const Gradients& out, Kept& kept, Sums& sums) {
  const int64_t H = c.H, E = c.E(), G = 3 * H;
  std::vector<float> dh(kTile * E), dreset(AFTER ? 0 : kTile * E);
  for (int64_t t = tile.length(0) - 1; t >= 0; --t) {
    const int64_t active = tile.active(t);
    if (kept.rows + active > kKept) flush(c, AFTER, kept, sums);
    CHECK(active > 0 && kept.rows + active <= kKept, t, active, kept.rows);
    float *grads = &kept.grads[kept.rows * G], *h = &kept.h[kept.rows * E];
    for (int64_t s = 0; s < active; ++s) {
      const int64_t n = tile.position(s, t);
      prefetch_row(saved.gates + (n - 1) * G, G);
      prefetch_row(saved.grad_states + (n - 1) * H, H);
      prefetch_row(saved.states + (n - 2) * H, H);
      if (AFTER) prefetch_row(saved.inner + (n - 1) * H, H);
      prefetch_row_for_write(out.parts + (n - 1) * G, G);
      step_back<KIND, AFTER>(c, saved, out, n, t == 0, &dh[s * E], grads + s * G, h + s * E,
                             sums.bias.data());
    }
    if (!AFTER) {
      float* reset = &kept.reset[kept.rows * E];
      multiply(grads + 2 * H, {G, 1}, &w[2 * H * E], E, active, H, E, dreset.data(), E, false);
      for (int64_t s = 0; s < active; ++s) {
        const int64_t at = tile.position(s, t) * G;
        reset_before_back(H, saved.gates + at, h + s * E, &dreset[s * E], out.parts + at, grads + s * G,
                          reset + s * E, &dh[s * E]);
      }
    }
    multiply(grads, {G, 1}, w.data(), E, active, AFTER ? G : 2 * H, E, dh.data(), E, true);
    kept.rows += active;
  }
}

std::vector<float> padded_rows(const float* from, int64_t rows, int64_t columns) {
  const int64_t stride = padded(columns);
  std::vector<float> to(rows * stride);
  for (int64_t i = 0; i < rows; ++i) std::copy_n(from + i * columns, columns, &to[i * stride]);
  return to;
}

void add_chunks(const Cells& c, bool after, const std::vector<Sums>& chunks, float* grad_weight,
                float* grad_bias_ih, float* grad_bias_hh) {
  const int64_t H = c.H;
  std::vector<float> bias(4 * H);
  std::fill(grad_weight, grad_weight + 3 * H * H, 0.0f);
  for (const Sums& chunk : chunks) {
    for (int64_t o = 0; o < 3 * H; ++o)
      for (int64_t i = 0; i < H; ++i) grad_weight[o * H + i] += chunk.weight[o * c.E() + i];
    for (int64_t o = 0; o < 4 * H; ++o) bias[o] += chunk.bias[o];
  }
  std::copy_n(bias.data(), 3 * H, grad_bias_hh);
  std::copy_n(bias.data(), 3 * H, grad_bias_ih);
  if (after) std::copy_n(&bias[3 * H], H, grad_bias_ih + 2 * H);
}

template <Kind KIND, bool AFTER>
void backward(const Cells& c, const Saved& saved, const Gradients& out, float* grad_weight,
              float* grad_bias_ih, float* grad_bias_hh) {
  const std::vector<int64_t> samples = longest_first(c.offsets, c.B);
  const std::vector<float> w = padded_rows(c.weight, 3 * c.H, c.H);
  std::vector<Sums> chunks(std::min(kChunks, num_tiles(c.B)));
#pragma omp parallel for schedule(dynamic)
  for (int64_t k = 0; k < (int64_t)chunks.size(); ++k) {
    Sums sums{std::vector<float>(3 * c.H * c.E()), std::vector<float>(4 * c.H)};
    Kept kept(c, AFTER);
    for (int64_t i = k; i < num_tiles(c.B); i += kChunks)
      backward_tile<KIND, AFTER>(c, w, tile_of(c, samples, i), saved, out, kept, sums);
    flush(c, AFTER, kept, sums);
    chunks[k] = std::move(sums);
  }
  add_chunks(c, AFTER, chunks, grad_weight, grad_bias_ih, grad_bias_hh);
}

// Calls run(kind, after) with constants.
template <class Run>
void with_constants(int64_t kind, int64_t after, Run run) {
  const auto with_kind = [&](auto k) {
    after ? run(k, std::true_type{}) : run(k, std::false_type{});
  };
  CHECK(kind >= 0 && kind <= static_cast<int64_t>(Kind::agru), kind);
  switch (static_cast<Kind>(kind)) {
    case Kind::gru: return with_kind(std::integral_constant<Kind, Kind::gru>{});
    case Kind::augru: return with_kind(std::integral_constant<Kind, Kind::augru>{});
    case Kind::augru_code: return with_kind(std::integral_constant<Kind, Kind::augru_code>{});
    case Kind::agru: return with_kind(std::integral_constant<Kind, Kind::agru>{});
  }
}

}  // namespace

// kind: a RecurrentKind; after: whether the reset gate comes after the candidate's product.
// parts: [N, 3H], and the gates on return; inner: [N, H], written where `after`; attention: [N], null
// for gru; states: [N, H].
HOTROWS_API void hotrows_recurrent(float* parts, const float* attention, const int64_t* offsets, int64_t B,
                                   const float* weight, const float* bias, int64_t H, int64_t kind,
                                   int64_t after, float* inner, float* states) {
  const Cells c{offsets, B, H, attention, weight, bias};
  with_constants(kind, after, [&](auto k, auto a) { forward<k(), a()>(c, parts, inner, states); });
}

HOTROWS_API void hotrows_recurrent_backward(const float* grad_states, const float* states, const float* gates,
                                            const float* inner, const float* attention,
                                            const int64_t* offsets, int64_t B, const float* weight,
                                            int64_t H, int64_t kind, int64_t after, float* grad_parts,
                                            float* grad_attention, float* grad_weight,
                                            float* grad_bias_ih, float* grad_bias_hh) {
  const Cells c{offsets, B, H, attention, weight, nullptr};
  const Saved saved{grad_states, states, gates, inner};
  with_constants(kind, after, [&](auto k, auto a) {
    backward<k(), a()>(c, saved, {grad_parts, grad_attention}, grad_weight, grad_bias_ih, grad_bias_hh);
  });
}
