// Faults, planted: what each sanitizer must find, and twins without them, in which it must find nothing.
#include <cstddef>
#include <cstdint>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))

// Reads the last of n values, or what is behind it.
API int64_t hotrows_read_behind(int64_t n, int64_t has_fault) {
  const std::vector<int64_t> values(static_cast<std::size_t>(n), 1);
  return values.data()[has_fault ? n : n - 1];
}

// Shifts by less than 64 bits, or by 64.
API int64_t hotrows_shift(int64_t n, int64_t has_fault) { return INT64_C(1) << (has_fault ? n : n - 1); }

// Sums what all threads have written; without the barrier a thread reads what another may write now.
API int64_t hotrows_sum_of_all(int64_t n, int64_t has_fault) {
  std::vector<int64_t> written(static_cast<std::size_t>(n)), sums(static_cast<std::size_t>(n));
#pragma omp parallel num_threads(3)
  {
#pragma omp for schedule(dynamic) nowait
    for (int64_t i = 0; i < n; ++i) written[i] = i;
    if (!has_fault) {
#pragma omp barrier
    }
#pragma omp for schedule(static)
    for (int64_t i = 0; i < n; ++i) sums[i] = written[n - 1 - i];
  }
  int64_t sum = 0;
#pragma omp parallel for reduction(+ : sum) num_threads(3)
  for (int64_t i = 0; i < n; ++i) sum += sums[i];
  return sum;
}
