// CHECK(condition, values ..): what the core relies on. A build with HOTROWS_CHECKS ends the process where a
// condition does not hold, and says which, where, and with what values, which are evaluated only then; any other
// build evaluates nothing of it.
// Conditions are compiled there all the same, so that none is left behind when the code moves.
#pragma once

#include <cstdint>

#ifdef HOTROWS_CHECKS
#include <cstdlib>
#include <iostream>
#endif

#define HOTROWS_FIRST(first, ...) (first)
#define CHECK(...)                                                                                        \
  do {                                                                                                    \
    if constexpr (::hotrows::kChecks)                                                                     \
      if (!HOTROWS_FIRST(__VA_ARGS__, 0)) ::hotrows::fail(__FILE__, __LINE__, #__VA_ARGS__, __VA_ARGS__); \
  } while (false)

namespace hotrows {

#ifdef HOTROWS_CHECKS
constexpr bool kChecks = true;

template <class... Values>
[[noreturn]] void fail(const char* file, int line, const char* text, bool, Values... values) {
  std::cerr << file << ':' << line << ": CHECK(" << text << ") does not hold";
  ((std::cerr << ' ' << +values), ...);
  std::cerr << std::endl;
  std::abort();
}

// Whether to look at a whole structure of this size now: what all looks of a thread cost stays in proportion to
// its calls.
inline bool is_look_due(int64_t size) {
  static thread_local int64_t saved = 0;
  saved += 1 << 12;
  if (saved < size) return false;
  saved = 0;
  return true;
}
#else
constexpr bool kChecks = false;
template <class... Values>
void fail(const char*, int, const char*, bool, Values...);
inline bool is_look_due(int64_t) { return false; }
#endif

// Whether n numbers rise, each above the one before it.
template <class T>
bool rises(const T* at, int64_t n) {
  for (int64_t i = 1; i < n; ++i)
    if (!(at[i - 1] < at[i])) return false;
  return true;
}

template <class T>
bool never_falls(const T* at, int64_t n) {
  for (int64_t i = 1; i < n; ++i)
    if (at[i] < at[i - 1]) return false;
  return true;
}

// Whether n numbers are from `first` up, and below `end`.
template <class T>
bool are_within(const T* at, int64_t n, int64_t first, int64_t end) {
  for (int64_t i = 0; i < n; ++i)
    if (static_cast<int64_t>(at[i]) < first || static_cast<int64_t>(at[i]) >= end) return false;
  return true;
}

}  // namespace hotrows
