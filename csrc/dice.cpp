// Dice (DIN): y = x (p + alpha (1 - p)), p = sigmoid((x - mean) / std) of each feature, in two passes
// over the rows each way. p is computed again on the way back: cheaper than keeping it. A layer of one
// output behind Dice, as in DIN's attention, is part of it: neither y nor its gradient is then in memory.
//
// Rows are cut into a fixed number of chunks, and these into blocks that stay in the first-level
// cache. A block's mean and variance are made by two passes over it, the second of which corrects the
// first; blocks and chunks are then combined in double (Chan, Golub, LeVeque 1979). No sum of squares
// ever cancels.
#include <numeric>

#include "chunks.h"
#include "vector_math.h"

namespace {

using namespace hotrows;

constexpr int64_t kBlock = 64;    // rows
constexpr int64_t kWidest = 512;  // values of rows that stand end to end

// Of some rows, their count and by feature the mean and the sum of squared differences from it.
struct Moments {
  double count = 0;
  std::vector<double> mean, squares;
  explicit Moments(int64_t H) : mean(H), squares(H) {}

  template <class T>
  void add(double other_count, const T* other_mean, const T* other_squares) {
    if (other_count == 0) return;
    const double share = other_count / (count + other_count), weight = count * share;
    for (size_t h = 0; h < mean.size(); ++h) {
      const double difference = other_mean[h] - mean[h];
      mean[h] += difference * share;
      squares[h] += other_squares[h] + difference * difference * weight;
    }
    count += other_count;
  }
};

void moments_of_block(const float* x, int64_t rows, int64_t H, float* mean, float* squares) {
  for (int64_t h = 0; h < H; h += kLanes) {
    const Vec origin = load(x + h, H - h);
    Vec total = {}, rest = {}, squared = {};
    for (int64_t r = 1; r < rows; ++r) total += load(x + r * H + h, H - h) - origin;
    const float share = 1.0f / static_cast<float>(rows);
    const Vec middle = origin + total * share;
    for (int64_t r = 0; r < rows; ++r) {
      const Vec difference = load(x + r * H + h, H - h) - middle;
      rest += difference;
      squared = fma(difference, difference, squared);
    }
    store(mean + h, middle + rest * share, H - h);
    store(squares + h, squared - rest * rest * share, H - h);
  }
}

Moments moments_of_rows(const float* x, int64_t rows, int64_t H) {
  Moments all(H);
  std::vector<float> mean(H), squares(H);
  for (int64_t r = 0; r < rows; r += kBlock) {
    const int64_t count = std::min(kBlock, rows - r);
    moments_of_block(x + r * H, count, H, mean.data(), squares.data());
    all.add(static_cast<double>(count), mean.data(), squares.data());
  }
  return all;
}

// What Dice has of its features, and the weights of a layer of one output behind it. All stand there `rows` times, so
// that so many rows of x, end to end, fill whole registers; behind them are zeros.
struct Features {
  int64_t H, rows;
  std::vector<uint32_t> row;  // of each value, below `rows`
  Floats mean, rstd, alpha, w;

  Features(const float* mean, const float* rstd, const float* alpha, const float* w, int64_t H)
      : H(H), rows(kLanes / std::gcd(H, kLanes)) {
    if (rows * H > kWidest) rows = 1;
    row.resize(padded(rows * H));
    for (int64_t r = 0; r < rows; ++r) std::fill_n(&row[r * H], H, static_cast<uint32_t>(r));
    this->mean = repeated(mean), this->rstd = repeated(rstd), this->alpha = repeated(alpha);
    if (w) this->w = repeated(w);
  }
  Floats repeated(const float* of) const {
    Floats out(padded(rows * H));
    for (int64_t r = 0; r < rows; ++r) std::copy_n(of, H, &out[r * H]);
    return out;
  }
  // Values of the rows from m on, those before `end`.
  int64_t values(int64_t m, int64_t end) const { return std::min(rows, end - m) * H; }
};

// What Dice makes of the values at `from`, the first of which is of feature h.
struct Gate {
  Vec x, z, p, alpha;
  Gate(const Features& f, const float* from, int64_t h, int64_t left)
      : x(load(from, left)),
        z((x - load_full(&f.mean[h])) * load_full(&f.rstd[h])),
        p(sigmoid(z)),
        alpha(load_full(&f.alpha[h])) {}
  Vec share() const { return fma(1.0f - alpha, p, alpha); }  // y / x
  Vec slope(Vec g) const { return g * x * (1.0f - alpha) * p * (1.0f - p); }  // the derivative of the loss by z
};

// The derivative of the loss by y in the rows from m on. With DOT `grad` is that by the output behind y: [M], times w.
template <bool DOT>
struct Gradient {
  const Features& f;
  const float* values;
  Vec outputs;
  Gradient(const Features& f, const float* grad, int64_t m, int64_t end) : f(f), values(grad + m * f.H) {
    if (DOT) outputs = load(grad + m, std::min(f.rows, end - m));
  }
  Vec of_output(int64_t h) const {
    Bits row;
    std::memcpy(&row, &f.row[h], sizeof row);
    return shuffle(outputs, row);
  }
  Vec operator()(int64_t h, int64_t left) const {
    return DOT ? of_output(h) * load_full(&f.w[h]) : load(values + h, left);
  }
};

void values(const Features& f, const float* x, int64_t M, float* out) {
  for (int64_t m = 0; m < M; m += f.rows)
    for (int64_t n = f.values(m, M), h = 0; h < n; h += kLanes) {
      const Gate gate(f, x + m * f.H + h, h, n - h);
      store(out + m * f.H + h, gate.x * gate.share(), n - h);
    }
}

// Adds those of the rows first .. end - 1 to part: [3, P], or [4, P].
template <bool DOT>
void add_sums(const Features& f, const float* grad, const float* x, int64_t first, int64_t end, int64_t P,
              float* part) {
  for (int64_t m = first; m < end; m += f.rows) {
    const Gradient<DOT> gradient(f, grad, m, end);
    for (int64_t n = f.values(m, end), h = 0; h < n; h += kLanes) {
      const Gate gate(f, x + m * f.H + h, h, n - h);
      const Vec g = gradient(h, n - h), by_z = gate.slope(g);
      float* to = part + h;
      store_full(to, load_full(to) + by_z), to += P;
      store_full(to, fma(by_z, gate.z, load_full(to))), to += P;
      store_full(to, fma(g * gate.x, 1.0f - gate.p, load_full(to))), to += P;
      if (DOT) store_full(to, fma(gradient.of_output(h) * gate.x, gate.share(), load_full(to)));
    }
  }
}

template <bool DOT>
void to_x(const Features& f, const float* grad, const float* x, const float* sums, int64_t M, int64_t num_rows,
          float* grad_x) {
  const float share = num_rows > 0 ? 1.0f / static_cast<float>(num_rows) : 0.0f;
  const Floats by_z = f.repeated(sums), by_zz = f.repeated(sums + f.H);
#pragma omp parallel for schedule(static)
  for (int64_t m = 0; m < M; m += f.rows) {
    const Gradient<DOT> gradient(f, grad, m, M);
    for (int64_t n = f.values(m, M), h = 0; h < n; h += kLanes) {
      const Gate gate(f, x + m * f.H + h, h, n - h);
      const Vec g = gradient(h, n - h), through = share * fma(gate.z, load_full(&by_zz[h]), load_full(&by_z[h]));
      store(grad_x + m * f.H + h, fma(load_full(&f.rstd[h]), gate.slope(g) - through, g * gate.share()), n - h);
    }
  }
}

}  // namespace

// mean and var: [H], var biased; M >= 1.
HOTROWS_API void hotrows_moments(const float* x, int64_t M, int64_t H, float* mean, float* var) {
  const int64_t chunks = chunks_of_rows(M);
  std::vector<Moments> parts(chunks, Moments(H));
#pragma omp parallel for schedule(static)
  for (int64_t c = 0; c < chunks; ++c) {
    const int64_t first = M * c / chunks, end = M * (c + 1) / chunks;
    parts[c] = moments_of_rows(x + first * H, end - first, H);
  }
  Moments all(H);
  for (const Moments& part : parts) all.add(part.count, part.mean.data(), part.squares.data());
  for (int64_t h = 0; h < H; ++h) {
    mean[h] = static_cast<float>(all.mean[h]);
    var[h] = static_cast<float>(all.squares[h] / static_cast<double>(M));
  }
}

// out: [M, H]; with w, [H], of a layer of one output behind it, that output: [M].
HOTROWS_API void hotrows_dice(const float* x, const float* mean, const float* rstd, const float* alpha, const float* w,
                              int64_t M, int64_t H, float* out) {
  const Features f(mean, rstd, alpha, w, H);
#pragma omp parallel
  {
    Floats block(w ? kLanes * H : 0);
#pragma omp for schedule(static)
    for (int64_t m = 0; m < M; m += kLanes) {
      const int64_t rows = std::min(kLanes, M - m);
      values(f, x + m * H, rows, w ? block.data() : out + m * H);
      for (int64_t r = 0; w && r < rows; ++r) {
        Vec total = {};
        for (int64_t h = 0; h < H; h += kLanes) total = fma(load(&block[r * H + h], H - h), load(w + h, H - h), total);
        out[m + r] = sum(total);
      }
    }
  }
}

// sums, over the rows: of dz, of dz z, of the gradients of alpha and, where it is not null, of w: [3, H] or [4, H].
// With w grad is that of the output behind it: [M] in place of [M, H].
HOTROWS_API void hotrows_dice_sums(const float* grad, const float* x, const float* mean, const float* rstd,
                                   const float* alpha, const float* w, int64_t M, int64_t H, float* sums) {
  const Features f(mean, rstd, alpha, w, H);
  const int64_t chunks = chunks_of_rows(M), P = padded(f.rows * H), count = w ? 4 : 3;
  std::vector<float> parts(chunks * count * P);
#pragma omp parallel for schedule(static)
  for (int64_t c = 0; c < chunks; ++c)
    (w ? add_sums<true> : add_sums<false>)(f, grad, x, M * c / chunks, M * (c + 1) / chunks, P,
                                           &parts[c * count * P]);
  std::fill(sums, sums + count * H, 0.0f);
  for (int64_t c = 0; c < chunks; ++c)
    for (int64_t k = 0; k < count; ++k)
      for (int64_t r = 0; r < f.rows; ++r)
        for (int64_t h = 0; h < H; ++h) sums[k * H + h] += parts[(c * count + k) * P + r * H + h];
}

// The gradient of x. sums: [2, H], of dz and of dz z over the num_rows rows whose statistics mean and
// rstd are, these M and maybe others; num_rows = 0: they are none of theirs, and nothing flows through.
HOTROWS_API void hotrows_dice_to_x(const float* grad, const float* x, const float* mean, const float* rstd,
                                   const float* alpha, const float* w, const float* sums, int64_t M, int64_t H,
                                   int64_t num_rows, float* grad_x) {
  (w ? to_x<true> : to_x<false>)(Features(mean, rstd, alpha, w, H), grad, x, sums, M, num_rows, grad_x);
}
