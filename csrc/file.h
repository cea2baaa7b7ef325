// What reading and rewriting files of records share: alignment, and buffers for it.
//
// Files opened for direct I/O want places, lengths and buffers that are multiples of `align`; `align` is 1
// for others. Failures are negative errno values.
#pragma once

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <new>
#include <system_error>
#include <thread>

#include <unistd.h>

#include "core.h"

namespace hotrows {

constexpr int64_t kPage = 4096;
constexpr int64_t kCutOff = -100000;  // "the file ends before": no errno says it

inline int64_t down(int64_t at, int64_t to) { return at / to * to; }
inline int64_t up(int64_t at, int64_t to) { return (at + to - 1) / to * to; }

struct Freed {
  void operator()(void* p) const { std::free(p); }
};
using Buffer = std::unique_ptr<char, Freed>;

inline Buffer buffer(int64_t size) {
  void* p = nullptr;
  if (posix_memalign(&p, kPage, static_cast<size_t>(size))) throw std::bad_alloc();
  return Buffer(static_cast<char*>(p));
}

}  // namespace hotrows
