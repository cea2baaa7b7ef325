// The co-action unit of CAN: a sample's own MLP reads every element of its list, forward and backward.
//
//   for each order o: h0 = x^o, h_l = tanh(h_(l-1) W_l), the last without tanh; out[o] = sum of all h_l
//
// A register holds one number of as many elements as it has lanes, so a sample's weights are read as
// scalars, from the first-level cache, and no matrix is made per element. Lanes behind the end of a
// list hold zeros, of which every layer makes zeros.
#include <memory>

#include "vector_math.h"

namespace {

using namespace hotrows;

constexpr int kMostLayers = 8;

struct Unit {
  int64_t sizes[kMostLayers + 1];
  int num_layers, orders;
  bool shared;  // whether all orders have the same weights

  int64_t inputs() const { return sizes[0]; }
  int64_t outputs() const {  // of one order
    int64_t total = 0;
    for (int l = 1; l <= num_layers; ++l) total += sizes[l];
    return total;
  }
  int64_t order_weights() const {
    int64_t total = 0;
    for (int l = 0; l < num_layers; ++l) total += sizes[l] * sizes[l + 1];
    return total;
  }
  int64_t weights() const { return order_weights() * (shared ? 1 : orders); }
  int64_t weights_of(int order) const { return shared ? 0 : order * order_weights(); }
  bool has_tanh(int layer) const { return layer + 1 < num_layers; }
};

// Elements first .. first + count of a list, as [inputs] registers.
void gather(const float* inputs, int64_t width, int64_t count, Vec* x) {
  for (int64_t i = 0; i < width; ++i) {
    Vec lanes = {};
    for (int64_t n = 0; n < count; ++n) lanes[n] = inputs[n * width + i];
    x[i] = lanes;
  }
}

void raise(const Vec* x, int64_t width, int order, Vec* power) {
  for (int64_t i = 0; i < width; ++i) power[i] = order == 0 ? x[i] : power[i] * x[i];
}

// out[j] = sum over i of in[i] * w[i, j] for COUNT numbers j: as many sums run side by side.
template <int COUNT>
void weigh(const Vec* in, int64_t from, const float* w, int64_t to, Vec* out) {
  Vec totals[COUNT] = {};
  for (int64_t i = 0; i < from; ++i)
    for (int c = 0; c < COUNT; ++c) totals[c] = fma(in[i], spread(w[i * to + c]), totals[c]);
  for (int c = 0; c < COUNT; ++c) out[c] = totals[c];
}

void weigh_all(const Vec* in, int64_t from, const float* w, int64_t to, Vec* out) {
  int64_t j = 0;
  for (; j + 8 <= to; j += 8) weigh<8>(in, from, w + j, to, out + j);
  for (; j + 4 <= to; j += 4) weigh<4>(in, from, w + j, to, out + j);
  for (; j < to; ++j) weigh<1>(in, from, w + j, to, out + j);
}

// For COUNT rows i of the weights: grad_in[i] += sum over j of grad_out[j] * w[i, j], and
// grad_w[i, j] += in[i] * grad_out[j].
template <int COUNT>
void weigh_back(const Vec* in, const Vec* grad_out, const float* w, int64_t to, Vec* grad_in, Vec* grad_w) {
  Vec totals[COUNT];
  for (int c = 0; c < COUNT; ++c) totals[c] = grad_in[c];
  for (int64_t j = 0; j < to; ++j)
    for (int c = 0; c < COUNT; ++c) {
      totals[c] = fma(grad_out[j], spread(w[c * to + j]), totals[c]);
      grad_w[c * to + j] = fma(in[c], grad_out[j], grad_w[c * to + j]);
    }
  for (int c = 0; c < COUNT; ++c) grad_in[c] = totals[c];
}

// h[l] of all layers, end to end.
void layers(const Unit& unit, const float* weights, const Vec* power, Vec* h) {
  const Vec* in = power;
  for (int l = 0; l < unit.num_layers; ++l) {
    const int64_t from = unit.sizes[l], to = unit.sizes[l + 1];
    weigh_all(in, from, weights, to, h);
    if (unit.has_tanh(l))
      for (int64_t j = 0; j < to; ++j) h[j] = tanh(h[j]);
    weights += from * to;
    in = h;
    h += to;
  }
}

// From grad, of all layers' outputs, to that of the power (into grad_power) and of the weights (added).
void layers_backward(const Unit& unit, const float* weights, const Vec* power, const Vec* h,
                     Vec* grad, Vec* grad_power, Vec* grad_weights) {
  const float* last_weights = weights + unit.order_weights();
  const Vec* out = h + unit.outputs();
  Vec* grad_out = grad + unit.outputs();
  Vec* to_weights = grad_weights + unit.order_weights();
  for (int l = unit.num_layers - 1; l >= 0; --l) {
    const int64_t from = unit.sizes[l], to = unit.sizes[l + 1];
    out -= to, grad_out -= to, last_weights -= from * to, to_weights -= from * to;
    const Vec* in = l == 0 ? power : out - from;
    Vec* grad_in = l == 0 ? grad_power : grad_out - from;
    if (unit.has_tanh(l))
      for (int64_t j = 0; j < to; ++j) grad_out[j] *= 1.0f - out[j] * out[j];
    if (l == 0) std::fill(grad_in, grad_in + from, Vec{});
    int64_t i = 0;
    for (; i + 4 <= from; i += 4)
      weigh_back<4>(in + i, grad_out, last_weights + i * to, to, grad_in + i, to_weights + i * to);
    for (; i < from; ++i)
      weigh_back<1>(in + i, grad_out, last_weights + i * to, to, grad_in + i, to_weights + i * to);
  }
}

// A thread's registers, kept where they are aligned.
struct Room {
  explicit Room(int64_t size) : registers(new Vec[size]()) {}
  std::unique_ptr<Vec[]> registers;
  Vec* next = registers.get();
  Vec* take(int64_t size) { return (next += size) - size; }
};

void forward_sample(const Unit& unit, const float* weights, const float* inputs, int64_t length, Vec* x,
                    Vec* power, Vec* h, Vec* sums, float* out) {
  const int64_t per_order = unit.outputs(), total = unit.orders * per_order;
  std::fill(sums, sums + total, Vec{});
  for (int64_t n = 0; n < length; n += kLanes) {
    gather(inputs + n * unit.inputs(), unit.inputs(), std::min(kLanes, length - n), x);
    for (int o = 0; o < unit.orders; ++o) {
      raise(x, unit.inputs(), o, power);
      layers(unit, weights + unit.weights_of(o), power, h);
      for (int64_t k = 0; k < per_order; ++k) sums[o * per_order + k] += h[k];
    }
  }
  for (int64_t k = 0; k < total; ++k) out[k] = sum(sums[k]);
}

void backward_sample(const Unit& unit, const float* grad, const float* weights, const float* inputs,
                     int64_t length, Vec* x, Vec* powers, Vec* h, Vec* grad_h, Vec* grad_power, Vec* sums,
                     float* grad_weights, float* grad_inputs) {
  const int64_t I = unit.inputs(), per_order = unit.outputs();
  std::fill(sums, sums + unit.weights(), Vec{});
  for (int64_t n = 0; n < length; n += kLanes) {
    const int64_t count = std::min(kLanes, length - n);
    gather(inputs + n * I, I, count, x);
    for (int64_t i = 0; i < I; ++i)  // below x^o, so that its derivative has what it needs
      for (int o = 0; o <= unit.orders; ++o) powers[o * I + i] = o == 0 ? spread(1.0f) : powers[(o - 1) * I + i] * x[i];
    Vec* grad_x = x;  // x stands in powers[1] from here on
    std::fill(grad_x, grad_x + I, Vec{});
    for (int o = 0; o < unit.orders; ++o) {
      const Vec* power = powers + (o + 1) * I;
      const float* own = weights + unit.weights_of(o);
      layers(unit, own, power, h);
      for (int64_t k = 0; k < per_order; ++k) grad_h[k] = spread(grad[o * per_order + k]);
      layers_backward(unit, own, power, h, grad_h, grad_power, sums + unit.weights_of(o));
      for (int64_t i = 0; i < I; ++i)
        grad_x[i] = fma(grad_power[i] * float(o + 1), powers[o * I + i], grad_x[i]);
    }
    for (int64_t i = 0; i < I; ++i)
      for (int64_t k = 0; k < count; ++k) grad_inputs[(n + k) * I + i] = grad_x[i][k];
  }
  for (int64_t k = 0; k < unit.weights(); ++k) grad_weights[k] = sum(sums[k]);
}

Unit unit_of(const int64_t* sizes, int num_layers, int orders, int shared) {
  Unit unit{{}, num_layers, orders, shared != 0};
  std::copy(sizes, sizes + num_layers + 1, unit.sizes);
  return unit;
}

}  // namespace

// weights: [B, weights of the unit]; inputs: [N, sizes[0]]; out: [B, orders * outputs]. At most eight
// layers; returns 1 where there are more.
HOTROWS_API int hotrows_co_action(const float* weights, const float* inputs, const int64_t* offsets, int64_t B,
                                  const int64_t* sizes, int num_layers, int orders, int shared, float* out) {
  if (num_layers > kMostLayers) return 1;
  const Unit unit = unit_of(sizes, num_layers, orders, shared);
  const int64_t I = unit.inputs(), per_order = unit.outputs(), outputs = orders * per_order;
#pragma omp parallel
  {
    Room room(2 * I + per_order + outputs);
    Vec *x = room.take(I), *power = room.take(I), *h = room.take(per_order), *sums = room.take(outputs);
#pragma omp for schedule(dynamic, 16)
    for (int64_t b = 0; b < B; ++b)
      forward_sample(unit, weights + b * unit.weights(), inputs + offsets[b] * I, offsets[b + 1] - offsets[b], x,
                     power, h, sums, out + b * outputs);
  }
  return 0;
}

HOTROWS_API int hotrows_co_action_backward(const float* grad, const float* weights, const float* inputs,
                                           const int64_t* offsets, int64_t B, const int64_t* sizes, int num_layers,
                                           int orders, int shared, float* grad_weights, float* grad_inputs) {
  if (num_layers > kMostLayers) return 1;
  const Unit unit = unit_of(sizes, num_layers, orders, shared);
  const int64_t I = unit.inputs(), per_order = unit.outputs(), outputs = orders * per_order;
#pragma omp parallel
  {
    Room room((orders + 3) * I + 2 * per_order + unit.weights());
    Vec *x = room.take(I), *powers = room.take((orders + 1) * I), *grad_power = room.take(I);
    Vec *h = room.take(per_order), *grad_h = room.take(per_order), *sums = room.take(unit.weights());
#pragma omp for schedule(dynamic, 16)
    for (int64_t b = 0; b < B; ++b)
      backward_sample(unit, grad + b * outputs, weights + b * unit.weights(), inputs + offsets[b] * I,
                      offsets[b + 1] - offsets[b], x, powers, h, grad_h, grad_power, sums,
                      grad_weights + b * unit.weights(), grad_inputs + offsets[b] * I);
  }
  return 0;
}
