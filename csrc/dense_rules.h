// The rules of dense optimizers: one step of a row with a gradient (apply), of registers without one (move).
#pragma once

#include "element_groups.h"

namespace hotrows {

using Numbers = const double (*)[8];  // of each step, as the caller gives them; ops/deferred.py says which

// What a step multiplies each of the three with where c = 0.
struct Powers {
  double w = 1, first = 1, second = 1;
  Powers operator*(const Powers& o) const { return {w * o.w, first * o.first, second * o.second}; }
};

template <class T>
struct Sgd {
  static constexpr int kStates = 1;  // none where there is no momentum
  T c, shrink, lr, momentum, undamped;
  bool nesterov;
  explicit Sgd(const double* n)
      : c(n[0]), shrink(n[1]), lr(n[2]), momentum(n[3]), undamped(n[4]), nesterov(n[5] != 0) {}
  template <int kDim>
  void apply(T* __restrict w, T* __restrict buffer, T*, const T* __restrict grad, int64_t dim) const {
    const int64_t width = kDim ? kDim : dim;
    if (!buffer) {
      for (int64_t d = 0; d < width; ++d) {
        w[d] = w[d] * shrink - lr * (grad[d] + c * w[d]);
      }
      return;
    }
    for (int64_t d = 0; d < width; ++d) {
      const T held = w[d] * shrink, g = grad[d] + c * w[d];
      const T moved = momentum * buffer[d] + undamped * g;
      buffer[d] = moved;
      w[d] = held - lr * (nesterov ? g + momentum * moved : moved);
    }
  }
};

template <class T>
struct Adagrad {
  static constexpr int kStates = 1;
  T c, shrink, lr, eps;
  explicit Adagrad(const double* n) : c(n[0]), shrink(n[1]), lr(n[2]), eps(n[3]) {}
  static Powers powers(const double* n) { return {n[1], 1, 1}; }
  template <int kDim>
  void apply(T* __restrict w, T* __restrict sum, T*, const T* __restrict grad, int64_t dim) const {
    const int64_t width = kDim ? kDim : dim;
    for (int64_t d = 0; d < width; ++d) {
      const T held = w[d] * shrink, g = grad[d] + c * w[d];
      sum[d] = sum[d] + g * g;
      w[d] = held - lr * g / (std::sqrt(sum[d]) + eps);
    }
  }
  void move(Reg<T>& w, Reg<T>& sum, Reg<T>&) const {
    const Reg<T> g = w * c;
    sum = sum + g * g;
    w = w * shrink - lr * g / (root(sum) + eps);
  }
};

template <class T>
struct RmsProp {
  static constexpr int kStates = 1;
  T c, shrink, lr, alpha, rest, eps;
  explicit RmsProp(const double* n) : c(n[0]), shrink(n[1]), lr(n[2]), alpha(n[3]), rest(1 - n[3]), eps(n[4]) {}
  static Powers powers(const double* n) { return {n[1], n[3], 1}; }
  template <int kDim>
  void apply(T* __restrict w, T* __restrict v, T*, const T* __restrict grad, int64_t dim) const {
    const int64_t width = kDim ? kDim : dim;
    for (int64_t d = 0; d < width; ++d) {
      const T held = w[d] * shrink, g = grad[d] + c * w[d];
      v[d] = v[d] * alpha + rest * g * g;
      w[d] = held - lr * g / (std::sqrt(v[d]) + eps);
    }
  }
  void move(Reg<T>& w, Reg<T>& v, Reg<T>&) const {
    const Reg<T> g = w * c;
    v = v * alpha + rest * g * g;
    w = w * shrink - lr * g / (root(v) + eps);
  }
};

template <class T>
struct Adam {
  static constexpr int kStates = 2;
  T c, shrink, rate, rest1, beta2, rest2, eps, correction;
  explicit Adam(const double* n)
      : c(n[0]), shrink(n[1]), rate(n[2]), rest1(1 - n[3]), beta2(n[4]), rest2(1 - n[4]), eps(n[5]), correction(n[6]) {}
  static Powers powers(const double* n) { return {n[1], n[3], n[4]}; }
  template <int kDim>
  void apply(T* __restrict w, T* __restrict m, T* __restrict v, const T* __restrict grad, int64_t dim) const {
    const int64_t width = kDim ? kDim : dim;
    for (int64_t d = 0; d < width; ++d) {
      const T held = w[d] * shrink, g = grad[d] + c * w[d];
      m[d] = m[d] + rest1 * (g - m[d]);
      v[d] = v[d] * beta2 + rest2 * g * g;
      w[d] = held - rate * m[d] / (std::sqrt(v[d]) / correction + eps);
    }
  }
  void move(Reg<T>& w, Reg<T>& m, Reg<T>& v) const {
    const Reg<T> g = w * c;
    m = m + rest1 * (g - m);
    v = v * beta2 + rest2 * g * g;
    w = w * shrink - rate * m / (root(v) / correction + eps);
  }
};

}  // namespace hotrows
