// What the steps of a dense optimizer do to rows whose gradient is zero, and to those of a batch.
//
// Between two touches the gradient of a row is c * w, so what happens to one element depends on that element
// and on the step it begins with alone:
//
//   sgd                  linear in (w, buffer): one matrix of 2 x 2 for all steps
//   no decay (c = 0)     adagrad, rmsprop: powers. adam: replayed until the weights have stopped moving
//   decay (c != 0)       replayed, step by step
//
// A Path holds the steps of one table in the rows' precision, made once per call. It replays a group of
// elements side by side, which stay in registers over the steps. Adam's float32 replay differs
// between instruction sets by rounding; all else has the same bits on all of them.
#pragma once

#include <type_traits>

#include "dense_rules.h"

namespace hotrows {

constexpr int64_t kCheck = 32;  // steps between two looks whether anything still moves

// The steps begin .. now - 1 of one table.
template <class Rule, class T>
class Path {
 public:
  Path(Numbers numbers, int64_t begin, int64_t now) : numbers_(numbers), begin_(begin), now_(now) {
    CHECK(begin >= 0 && begin < now, begin, now);
    const int64_t count = now - begin;
    steps_.reserve(count);
    for (int64_t t = begin; t < now; ++t) steps_.emplace_back(numbers[t]);
    run_ends_.resize(count);
    equal_ends_.resize(count);
    powers_.resize(count);
    for (int64_t t = now - 1; t >= begin; --t) {
      const bool more = t + 1 < now;
      const bool run = more && fades(t) == fades(t + 1);
      const bool equal = more && !std::memcmp(numbers[t], numbers[t + 1], sizeof *numbers);
      run_ends_[t - begin] = run ? run_ends_[t + 1 - begin] : t + 1;
      equal_ends_[t - begin] = equal ? equal_ends_[t + 1 - begin] : t + 1;
      const Powers own = Rule::powers(numbers[t]);
      powers_[t - begin] = run ? own * powers_[t + 1 - begin] : own;
    }
  }

  // Whether the steps from `start` on are powers; then `close` makes them for one row.
  bool closed(int64_t start) const { return fades(start) && run_end(start) == now_; }
  void close(int64_t start, T* w, T* state, int64_t dim) const {
    CHECK(state && closed(start), start);
    const Powers by = powers_[start - begin_];
    multiply(w, by.w, dim);
    multiply(state, by.first, dim);
  }

  // The steps from .. to - 1.
  void replay(const Elements<T>& e, int64_t from, int64_t to) const {
    while (from < to) {
      const int64_t end = std::min(to, run_end(from));
      CHECK(end > from, from, end);
      fades(from) ? rest(e, from, end) : decay(e, from, end);
      from = end;
    }
  }

 protected:
  bool fades(int64_t t) const { return numbers_[t][0] == 0; }
  int64_t run_end(int64_t t) const {
    CHECK(t >= begin_ && t < now_, t, begin_, now_);
    return run_ends_[t - begin_];
  }
  const Rule& step(int64_t t) const { return steps_[t - begin_]; }

  Powers powers(int64_t from, int64_t to) const {
    if (from == to) return {};
    CHECK(from < to && to <= now_, from, to, now_);
    if (to == run_end(from)) return powers_[from - begin_];
    Powers product;
    for (int64_t t = from; t < to; ++t) product = product * Rule::powers(numbers_[t]);
    return product;
  }
  // Steps that are powers.
  void rest(const Elements<T>& e, int64_t from, int64_t to) const {
    const Powers by = powers(from, to);
    multiply(e.w, by.w);
    multiply(e.first, by.first);
    multiply(e.second, by.second);
  }

  // Steps with c != 0, of one run.
  void decay(const Elements<T>& e, int64_t from, int64_t to) const {
    replay_until_rest(e, from, to, [this](int64_t t, Reg<T>& w, Reg<T>& a, Reg<T>& b) { step(t).move(w, a, b); });
  }

  // Replays until nothing can move any more: where the weights and the first moments are zero, the gradient
  // is, and the steps left are powers; where a step changes no bit, those with equal numbers do not either.
  template <class Move>
  void replay_until_rest(const Elements<T>& e, int64_t from, int64_t to, Move move) const {
    while (from < to) {
      const int64_t end = std::min(to, from + kCheck);
      in_registers(e, from, end, move);
      from = end;
      if (from == to) return;
      const auto at_rest = [&](int64_t i) {
        const auto zero = read(e.w + i * kWidth<T>) == 0;
        return Rule::kStates < 2 ? zero : zero & (read(e.first + i * kWidth<T>) == 0);
      };
      if (all<T>(at_rest)) return rest(e, from, to);
      const int64_t equal_end = std::min(to, equal_ends_[from - begin_]);
      if (equal_end > from + 1) {
        Reg<T> before[3][kVectors];
        const T* parts[3] = {e.w, e.first, e.second};
        for (int k = 0; k < 3; ++k) std::memcpy(before[k], parts[k], sizeof before[k]);
        in_registers(e, from, from + 1, move);
        bool same = true;
        for (int k = 0; k < 3; ++k) same &= !std::memcmp(before[k], parts[k], sizeof before[k]);
        from = same ? equal_end : from + 1;
      }
    }
  }

  Numbers numbers_;
  int64_t begin_, now_;
  std::vector<Rule> steps_;
  std::vector<int64_t> run_ends_, equal_ends_;  // of steps alike in whether c = 0, of steps with equal numbers
  std::vector<Powers> powers_;                  // from each step to the end of its run
};

// Linear: (w, buffer) after all steps = matrix (w, buffer) before, in float64, whatever the numbers are.
template <class T>
class SgdPath {
 public:
  SgdPath(Numbers numbers, int64_t begin, int64_t now) : begin_(begin), after_(now - begin + 1) {
    for (int64_t t = now - 1; t >= begin; --t) {
      const double *n = numbers[t], c = n[0], shrink = n[1], lr = n[2], momentum = n[3], undamped = n[4];
      const double nesterov = n[5] != 0;
      const double kept = undamped * c;  // what the buffer takes of w
      const double way_w = nesterov ? c + momentum * kept : kept;
      const double way_buffer = nesterov ? momentum * momentum : momentum;
      const Matrix step{shrink - lr * way_w, -lr * way_buffer, kept, momentum, shrink - lr * c};
      const Matrix& rest = after_[t + 1 - begin];
      after_[t - begin] = {rest.ww * step.ww + rest.wb * step.bw, rest.ww * step.wb + rest.wb * step.bb,
                           rest.bw * step.ww + rest.bb * step.bw, rest.bw * step.wb + rest.bb * step.bb,
                           rest.alone * step.alone};
    }
  }
  bool closed(int64_t) const { return true; }
  void close(int64_t start, T* __restrict w, T* __restrict buffer, int64_t dim) const {
    CHECK(start >= begin_ && start - begin_ < static_cast<int64_t>(after_.size()), start, begin_, after_.size());
    const Matrix& by = after_[start - begin_];
    if (!buffer) return multiply(w, by.alone, dim);
    for (int64_t d = 0; d < dim; ++d) {
      const double old_w = w[d], old_buffer = buffer[d];
      w[d] = static_cast<T>(by.ww * old_w + by.wb * old_buffer);
      buffer[d] = static_cast<T>(by.bw * old_w + by.bb * old_buffer);
    }
  }
  void replay(const Elements<T>&, int64_t, int64_t) const {}  // never: it is closed

 private:
  struct Matrix {
    double ww = 1, wb = 0, bw = 0, bb = 1, alone = 1;  // alone: of w where there is no buffer
  };
  int64_t begin_;
  std::vector<Matrix> after_;
};

template <class T>
class AdamPath : public Path<Adam<T>, T> {
  using Base = Path<Adam<T>, T>;
  using Base::begin_, Base::fades, Base::now_, Base::numbers_, Base::powers, Base::run_end, Base::step;

 public:
  AdamPath(Numbers numbers, int64_t begin, int64_t now) : Base(numbers, begin, now) {
    bound_what_remains();
    scale();
  }
  bool closed(int64_t) const { return false; }
  void replay(const Elements<T>& e, int64_t from, int64_t to) const {
    while (from < to) {
      const int64_t end = std::min(to, run_end(from));
      fades(from) ? fade(e, from, end) : decay(e, from, end);
      from = end;
    }
  }

 private:
  // c = 0. Both moments shrink by constant factors, the second one by so much less that the updates die out. Let
  //   q_t = rate_t m_t / D_t,  D_t = sqrt(v_t) / correction_t + eps_t.
  // m shrinks by beta1 a step and D at most by
  //   least_t = min(sqrt(beta2_t) correction_{t-1} / correction_t, eps_t / eps_{t-1}),
  // so with the weights themselves shrinking, |q_k / w_k| <= |rate_k / rate_t| prod(beta1 / (least shrink)) |q_t / w_t|.
  // remains_[t] is the sum of these factors over the steps after t. Half an ulp of w is at least 2^-25 |w| in
  // float32; once remains_[t] |q_t| is below a quarter of that, no step left can move w, nor can all of
  // them together: they are left out.
  void bound_what_remains() {
    remains_.resize(now_ - begin_);
    double after = 0;  // the sum over t .. of |rate_k| times the product, relative to m_t / D_t
    for (int64_t t = now_ - 1; t >= begin_; --t) {
      const double* n = numbers_[t];
      if (t + 1 == run_end(t)) after = 0;
      if (after != 0) {
        const double* next = numbers_[t + 1];
        const double least = std::min(std::sqrt(next[4]) * n[6] / next[6], n[5] == 0 ? 1 : next[5] / n[5]);
        after *= next[3] / (least * next[1]);
        if (!(next[1] > 0)) after = std::numeric_limits<double>::quiet_NaN();  // never left out
      }
      remains_[t - begin_] = static_cast<T>(after / std::fabs(n[2]));  // infinite where the rate is 0
      after += std::fabs(n[2]);
    }
  }

  void fade(const Elements<T>& e, int64_t from, int64_t to) const {
    constexpr int64_t kFew = 16;
    constexpr T kTiny = std::numeric_limits<T>::epsilon() / 16;
    T roots[kGroup<T>];
    for (int64_t i = 0; i < kVectors; ++i) write(roots + i * kWidth<T>, root(read(e.second + i * kWidth<T>)));
    double fallen = 1;  // sqrt(v_t) = fallen * roots
    [[maybe_unused]] const bool calm = all<T>([&](int64_t i) {
      return (read(roots + i * kWidth<T>) < T(1e15)) & (absolute<T>(read(e.first + i * kWidth<T>)) < T(1e15));
    });
    int64_t at = from;
    while (at < to) {
      const int64_t end = std::min(to, at + kFew);
      Reg<T> w[kVectors], m[kVectors], r[kVectors], q[kVectors] = {};
      for (int64_t i = 0; i < kVectors; ++i) {
        w[i] = read(e.w + i * kWidth<T>);
        m[i] = read(e.first + i * kWidth<T>);
        r[i] = read(roots + i * kWidth<T>);
      }
      for (; at < end; ++at) {
        const Adam<T>& s = step(at);
        fallen *= std::sqrt(numbers_[at][4]);
#if defined(__AVX512F__)
        if constexpr (std::is_same_v<T, float>) {
          const Tame& tame = tame_[at - begin_];
          if (calm && tame.is) {
            const Vec a = spread(static_cast<float>(fallen * tame.a)), b = spread(tame.b);
#pragma GCC unroll 8
            for (int64_t i = 0; i < kVectors; ++i) {
              m[i] = _mm512_fnmadd_ps(m[i], spread(s.rest1), m[i]);
              q[i] = near_quotient(m[i], fma(r[i], a, b));
              w[i] = _mm512_fmsub_ps(w[i], spread(s.shrink), q[i]);
            }
            continue;
          }
        }
#endif
        const T scale = static_cast<T>(fallen / numbers_[at][6]);
#pragma GCC unroll 8
        for (int64_t i = 0; i < kVectors; ++i) {
          m[i] = m[i] - m[i] * s.rest1;
          q[i] = s.rate * m[i] / (r[i] * scale + s.eps);
          w[i] = w[i] * s.shrink - q[i];
        }
      }
      for (int64_t i = 0; i < kVectors; ++i) {
        write(e.w + i * kWidth<T>, w[i]);
        write(e.first + i * kWidth<T>, m[i]);
      }
      CHECK(at > from && at <= to, from, at, to);
      const T remains = remains_[at - 1 - begin_];
      if (all<T>([&](int64_t i) { return absolute<T>(q[i]) * remains <= kTiny * absolute<T>(w[i]); })) break;
    }
    const Powers left = powers(at, to);
    multiply(e.w, left.w);
    multiply(e.first, left.first);
    multiply(e.second, powers(from, to).second);
  }

  // c != 0. On AVX-512, float32 steps of one beta2 and one scale C run on m / C and v / (C^2 (1 - beta2)), whose
  // gradients are c / C w and its square: four operations fewer, three where c does not change.
  void decay(const Elements<T>& e, int64_t from, int64_t to) const {
#if defined(__AVX512F__)
    if constexpr (std::is_same_v<T, float>) {
      while (from < to) {
        int64_t end = std::min(to, scaled_[from - begin_].end);
        if (end - from >= kFewest && replay_scaled(e, from, end)) {
          from = end;
          continue;
        }
        end = std::clamp(end, from + 1, std::min(to, from + kCheck));
        CHECK(end > from && end <= to, from, end, to);
        Base::decay(e, from, end);
        from = end;
      }
      return;
    }
#endif
    Base::decay(e, from, to);
  }

#if defined(__AVX512F__)
  static constexpr int64_t kFewest = 12;  // steps that are worth the scaling

  struct Tame {
    double a;  // of a step with c = 0: w -= m / (a sqrt(v) + b)
    float b;
    bool is;
  };
  struct Scaled {
    float shrink, rest1, beta2, a, b;  // w -= m / (a sqrt(v) + b), of the scaled moments
    float part;                        // c / C
    double c;                          // C, the largest c of its run
    int64_t end;                       // of the steps from this one on that share a scale; itself where it has none
  };

  void scale() {
    if constexpr (std::is_same_v<T, float>) {
      scaled_.resize(now_ - begin_);
      tame_.resize(now_ - begin_);
      for (int64_t t = begin_; t < now_; ++t) {
        const double *n = numbers_[t], a = 1 / (n[6] * n[2]), b = n[5] / n[2];
        tame_[t - begin_] = {a, static_cast<float>(b),
                             n[2] > 0 && a > 1e-12 && a < 1e12 && b > 1e-20 && b < 1e20};
        scaled_[t - begin_].end = t;
      }
      for (int64_t t = begin_; t < now_;) {
        const int64_t start = t;
        double least = numbers_[t][0], most = least;
        Range range{0, 1e30};
        for (; t < run_end(start) && numbers_[t][4] == numbers_[start][4]; ++t) {
          const double c = numbers_[t][0], low = std::min(least, c), high = std::max(most, c);
          const Range both = range.and_of(numbers_[t]);
          if (high > 1e4 * low || !(both.above < high && high < both.below)) break;
          least = low, most = high, range = both;
        }
        if (t == start) {
          ++t;
          continue;
        }
        for (int64_t k = start; k < t; ++k) {
          const double* n = numbers_[k];
          scaled_[k - begin_] = {static_cast<float>(n[1]), static_cast<float>(1 - n[3]), static_cast<float>(n[4]),
                                 static_cast<float>(a_of(n)), static_cast<float>(b_of(n, most)),
                                 static_cast<float>(n[0] / most), most, t};
        }
      }
    }
  }

  static double a_of(const double* n) { return std::sqrt(1 - n[4]) / (n[6] * n[2]); }
  static double b_of(const double* n, double c) { return n[5] / (c * n[2]); }

  // The scales that steps can run on: far from where a float would overflow or be denormal; and where v is too small to
  // be a normal number, its root is nothing beside b. A rate of 0, or no eps, is left to the plain step.
  struct Range {
    double above, below;
    Range and_of(const double* n) const {
      const double a = a_of(n), eps = n[5] / n[2];
      const bool is = n[0] > 0 && n[2] > 0 && n[0] * n[0] * (1 - n[4]) > 1e-24 && a > 1e-12 && a < 1e12;
      return is ? Range{std::max(above, eps / 1e20), std::min(below, eps / std::max(a * 1e-11, 1e-20))} : Range{0, 0};
    }
  };

  // False, and nothing done, where a number is too large.
  bool replay_scaled(const Elements<float>& e, int64_t from, int64_t to) const {
    const double c = scaled_[from - begin_].c, square = c * c * (1 - numbers_[from][4]);
    const float largest_m = static_cast<float>(std::min(1e30, 1e30 * c)), largest_v = static_cast<float>(std::min(1e30, 1e30 * square));
    const auto small = [&](int64_t i) {
      return (absolute<float>(read(e.w + i * kLanes)) < 1e14f) & (absolute<float>(read(e.first + i * kLanes)) < largest_m) &
             (read(e.second + i * kLanes) < largest_v);
    };
    if (!all<float>(small)) return false;
    multiply(e.first, 1 / c);
    multiply(e.second, 1 / square);
    bool plain = true;  // the steps neither shrink the weights, nor do their c differ
    for (int64_t t = from; t < to; ++t) plain &= scaled_[t - begin_].shrink == 1 && scaled_[t - begin_].part == 1;
    const auto move = [this](auto is_plain) {
      return [this](int64_t t, Vec& w, Vec& m, Vec& v) { move_scaled<decltype(is_plain)::value>(scaled_[t - begin_], w, m, v); };
    };
    plain ? this->replay_until_rest(e, from, to, move(std::true_type())) : this->replay_until_rest(e, from, to, move(std::false_type()));
    multiply(e.first, c);
    multiply(e.second, square);
    return true;
  }

  template <bool kPlain>
  static inline void move_scaled(const Scaled& s, Vec& w, Vec& m, Vec& v) {
    const Vec g = kPlain ? w : w * spread(s.part);
    m = fma(spread(s.rest1), g - m, m);
    v = fma(g, g, v * s.beta2);
    const Vec update = near_quotient(m, fma(spread(s.a), near_root(v), spread(s.b)));
    w = kPlain ? w - update : (Vec)_mm512_fmsub_ps(w, spread(s.shrink), update);
  }

  std::vector<Tame> tame_;
  std::vector<Scaled> scaled_;
#else
  void scale() {}
#endif

  std::vector<T> remains_;
};

}  // namespace hotrows
