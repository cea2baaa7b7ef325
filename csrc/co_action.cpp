// The co-action unit (CAN): each sample's own small network over the vectors of its list, summed.
//
// Positions stand in the lanes: a block of them is turned to [width, positions], and every product
// has a small matrix of the sample's on the left. Where a list ends within a register the vectors are
// zeros, and so, without biases, are all activations. The last layer is linear: it is applied once to
// the sum over the positions. Nothing is kept between forward and backward but the inputs.
#include "matrix.h"
#include "vector_math.h"

namespace {

using namespace hotrows;

constexpr int64_t kBlock = 3 * kLanes;  // positions at once: the columns of `multiply`'s registers

struct Network {
  const int64_t* sizes;
  int64_t num_layers, orders;
  bool shared;  // by the orders
  int64_t in(int64_t l) const { return sizes[l]; }
  int64_t out(int64_t l) const { return sizes[l + 1]; }
  int64_t num_outputs() const {  // of one order
    int64_t total = 0;
    for (int64_t l = 0; l < num_layers; ++l) total += out(l);
    return total;
  }
  int64_t first_weight(int64_t layer) const {
    int64_t total = 0;
    for (int64_t l = 0; l < layer; ++l) total += in(l) * out(l);
    return total;
  }
  int64_t first_output(int64_t layer) const {
    int64_t total = 0;
    for (int64_t l = 0; l < layer; ++l) total += out(l);
    return total;
  }
  int64_t order_stride() const { return shared ? 0 : first_weight(num_layers); }
  int64_t num_weights() const { return first_weight(num_layers) * (shared ? 1 : orders); }
  int64_t widest() const { return *std::max_element(sizes, sizes + num_layers + 1); }
  int64_t last() const { return num_layers - 1; }
};

// Scratch of a thread; matrices have rows of kBlock positions.
struct Scratch {
  std::vector<std::vector<float>> powers;        // x^1, x^2, ..., each [sizes[0], kBlock]
  std::vector<std::vector<float>> activations;   // what each layer reads; of layer 0 a copy of a power
  std::vector<float> tops;                       // [orders, in(last)]: the sums that the last layer reads
  std::vector<float> grad, grad_in, turned, grad_x;
  std::vector<float> grad_weights;               // of one layer, rows in whole registers
  explicit Scratch(const Network& n)
      : powers(n.orders, std::vector<float>(n.in(0) * kBlock)),
        tops(n.orders * n.in(n.last())),
        grad(n.widest() * kBlock),
        grad_in(n.widest() * kBlock),
        turned(kBlock * padded(n.widest())),
        grad_x(n.in(0) * kBlock),
        grad_weights(n.widest() * padded(n.widest())) {
    for (int64_t l = 0; l < n.num_layers; ++l) activations.emplace_back(n.in(l) * kBlock);
  }
};

// The block's vectors and their powers, positions in the lanes.
void read_block(const Network& n, const float* inputs, int64_t count, Scratch& s) {
  const int64_t columns = padded(count);
  transpose(inputs, n.in(0), count, n.in(0), s.powers[0].data(), kBlock);
  for (int64_t o = 1; o < n.orders; ++o)
    for (int64_t i = 0; i < n.in(0) * kBlock; i += kBlock)
      for (int64_t p = i; p < i + columns; p += kLanes)
        store_full(&s.powers[o][p], load_full(&s.powers[o - 1][p]) * load_full(&s.powers[0][p]));
}

inline const float* read_by(const Scratch& s, int64_t layer, int64_t order) {
  return layer == 0 ? s.powers[order].data() : s.activations[layer].data();
}

// All layers of one order but the last: w are its weights.
void run_hidden(const Network& n, const float* w, int64_t order, int64_t columns, Scratch& s) {
  for (int64_t l = 0; l < n.last(); w += n.in(l) * n.out(l), ++l) {
    float* y = s.activations[l + 1].data();
    multiply(w, {1, n.out(l)}, read_by(s, l, order), kBlock, n.out(l), n.in(l), columns, y, kBlock, false);
    for (int64_t i = 0; i < n.out(l) * kBlock; i += kBlock)
      for (int64_t p = i; p < i + columns; p += kLanes) store_full(y + p, hotrows::tanh(load_full(y + p)));
  }
}

void add_sums(const float* rows, int64_t num_rows, int64_t columns, float* sums) {
  for (int64_t i = 0; i < num_rows; ++i) {
    Vec total = {};
    for (int64_t p = 0; p < columns; p += kLanes) total += load_full(rows + i * kBlock + p);
    sums[i] += sum(total);
  }
}

void forward_sample(const Network& n, const float* weights, const float* inputs, int64_t count,
                    Scratch& s, float* out) {
  const int64_t outputs = n.num_outputs(), last = n.last();
  std::fill(out, out + n.orders * outputs, 0.0f);
  std::fill(s.tops.begin(), s.tops.end(), 0.0f);
  CHECK(count >= 0 && last >= 0, count, last);
  for (int64_t p = 0; p < count; p += kBlock) {
    const int64_t own = std::min(kBlock, count - p), columns = padded(own);
    read_block(n, inputs + p * n.in(0), own, s);
    for (int64_t o = 0; o < n.orders; ++o) {
      run_hidden(n, weights + o * n.order_stride(), o, columns, s);
      for (int64_t l = 1; l < last; ++l)
        add_sums(read_by(s, l, o), n.in(l), columns, out + o * outputs + n.first_output(l - 1));
      add_sums(read_by(s, last, o), n.in(last), columns, &s.tops[o * n.in(last)]);
    }
  }
  for (int64_t o = 0; o < n.orders; ++o) {
    const float *w = weights + o * n.order_stride() + n.first_weight(last), *top = &s.tops[o * n.in(last)];
    float* y = out + o * outputs + n.first_output(last);
    if (last > 0) std::copy_n(top, n.in(last), y - n.in(last));
    for (int64_t i = 0; i < n.in(last); ++i)
      for (int64_t k = 0; k < n.out(last); ++k) y[k] += top[i] * w[i * n.out(last) + k];
  }
}

// dW += the products of a layer's inputs and the gradients of its outputs, summed over positions.
void add_weight_gradient(const Network& n, int64_t layer, const float* read, int64_t columns, Scratch& s,
                         float* grad_weights) {
  const int64_t I = n.in(layer), O = n.out(layer), S = padded(O);
  transpose(s.grad.data(), kBlock, O, columns, s.turned.data(), S);
  multiply(read, {kBlock, 1}, s.turned.data(), S, I, columns, S, s.grad_weights.data(), S, false);
  for (int64_t i = 0; i < I; ++i)
    for (int64_t k = 0; k < O; ++k) grad_weights[i * O + k] += s.grad_weights[i * S + k];
}

// Behind `run_hidden`, for one order. grad: of its outputs; each position has the same.
void hidden_back(const Network& n, const float* weights, const float* grad, int64_t order,
                 int64_t columns, Scratch& s, float* grad_weights) {
  const int64_t last = n.last();
  const float *w = weights + n.first_weight(last), *g = grad + n.first_output(last);
  for (int64_t i = 0; i < n.in(last); ++i) {
    float into = last > 0 ? grad[n.first_output(last - 1) + i] : 0.0f;
    for (int64_t k = 0; k < n.out(last); ++k) into += w[i * n.out(last) + k] * g[k];
    std::fill_n(&s.grad_in[i * kBlock], columns, into);
  }
  for (int64_t l = last - 1; l >= 0; --l) {
    const float* y = s.activations[l + 1].data();
    for (int64_t i = 0; i < n.out(l) * kBlock; i += kBlock)
      for (int64_t p = i; p < i + columns; p += kLanes) {
        const Vec a = load_full(y + p);
        store_full(&s.grad[p], load_full(&s.grad_in[p]) * (1.0f - a * a));
      }
    add_weight_gradient(n, l, read_by(s, l, order), columns, s, grad_weights + n.first_weight(l));
    for (int64_t i = 0; i < n.in(l); ++i)
      std::fill_n(&s.grad_in[i * kBlock], columns, l > 0 ? grad[n.first_output(l - 1) + i] : 0.0f);
    multiply(weights + n.first_weight(l), {n.out(l), 1}, s.grad.data(), kBlock, n.in(l), n.out(l), columns,
             s.grad_in.data(), kBlock, true);
  }
}

// The gradient of x from that of its power: order times the power below.
void add_power_gradient(const Network& n, int64_t order, int64_t columns, Scratch& s) {
  for (int64_t i = 0; i < n.in(0) * kBlock; i += kBlock)
    for (int64_t p = i; p < i + columns; p += kLanes) {
      const Vec g = load_full(&s.grad_in[p]), below = order ? load_full(&s.powers[order - 1][p]) : spread(1);
      store_full(&s.grad_x[p], fma(below * float(order + 1), g, load_full(&s.grad_x[p])));
    }
}

void backward_sample(const Network& n, const float* grad, const float* weights, const float* inputs,
                     int64_t count, Scratch& s, float* grad_weights, float* grad_inputs) {
  const int64_t outputs = n.num_outputs(), last = n.last(), D = n.in(0);
  std::fill(grad_weights, grad_weights + n.num_weights(), 0.0f);
  std::fill(s.tops.begin(), s.tops.end(), 0.0f);
  for (int64_t p = 0; p < count; p += kBlock) {
    const int64_t own = std::min(kBlock, count - p), columns = padded(own);
    read_block(n, inputs + p * D, own, s);
    std::fill(s.grad_x.begin(), s.grad_x.end(), 0.0f);
    for (int64_t o = 0; o < n.orders; ++o) {
      run_hidden(n, weights + o * n.order_stride(), o, columns, s);
      add_sums(read_by(s, last, o), n.in(last), columns, &s.tops[o * n.in(last)]);
      hidden_back(n, weights + o * n.order_stride(), grad + o * outputs, o, columns, s,
                  grad_weights + o * n.order_stride());
      add_power_gradient(n, o, columns, s);
    }
    transpose(s.grad_x.data(), kBlock, D, own, s.turned.data(), padded(D));
    for (int64_t k = 0; k < own; ++k)
      std::memcpy(grad_inputs + (p + k) * D, &s.turned[k * padded(D)], D * sizeof(float));
  }
  for (int64_t o = 0; o < n.orders; ++o) {
    const float *top = &s.tops[o * n.in(last)], *g = grad + o * outputs + n.first_output(last);
    float* to = grad_weights + o * n.order_stride() + n.first_weight(last);
    for (int64_t i = 0; i < n.in(last); ++i)
      for (int64_t k = 0; k < n.out(last); ++k) to[i * n.out(last) + k] += top[i] * g[k];
  }
}

}  // namespace

// sizes: [num_layers + 1]; weights: [B, W], W the weights of all layers (of each order, unless they
// are shared), each [in, out]; inputs: [N, sizes[0]]; out and grad: [B, orders * sum of sizes[1:]].
HOTROWS_API void hotrows_co_action(const float* weights, const float* inputs, const int64_t* offsets,
                                   int64_t B, const int64_t* sizes, int64_t num_layers, int64_t orders,
                                   int64_t shared, float* out) {
  const Network n{sizes, num_layers, orders, shared != 0};
#pragma omp parallel
  {
    Scratch s(n);
#pragma omp for schedule(dynamic, 16)
    for (int64_t b = 0; b < B; ++b)
      forward_sample(n, weights + b * n.num_weights(), inputs + offsets[b] * sizes[0],
                     offsets[b + 1] - offsets[b], s, out + b * orders * n.num_outputs());
  }
}

HOTROWS_API void hotrows_co_action_backward(const float* grad, const float* weights, const float* inputs,
                                            const int64_t* offsets, int64_t B, const int64_t* sizes,
                                            int64_t num_layers, int64_t orders, int64_t shared,
                                            float* grad_weights, float* grad_inputs) {
  const Network n{sizes, num_layers, orders, shared != 0};
#pragma omp parallel
  {
    Scratch s(n);
#pragma omp for schedule(dynamic, 16)
    for (int64_t b = 0; b < B; ++b)
      backward_sample(n, grad + b * orders * n.num_outputs(), weights + b * n.num_weights(),
                      inputs + offsets[b] * sizes[0], offsets[b + 1] - offsets[b], s,
                      grad_weights + b * n.num_weights(), grad_inputs + offsets[b] * sizes[0]);
  }
}
