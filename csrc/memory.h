// Memory that is accounted for: zeroed blocks, given back to the system at once, under a common limit;
// and vectors in large pages.
#pragma once

#include "core.h"

#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>
#include <utility>

#include <sys/mman.h>

namespace hotrows {

// A block of zeroed memory; a large one in huge pages, where the system has them.
class Zeroed {
 public:
  Zeroed() = default;
  explicit Zeroed(int64_t size) : size_(size) {
    data_ = mapped() ? map() : std::calloc(1, static_cast<size_t>(size));
    if (!data_ && size > 0) throw std::bad_alloc();
  }
  ~Zeroed() {
    if (!data_) return;
    if (mapped()) {
      ::munmap(data_, static_cast<size_t>(num_mapped()));
    } else {
      std::free(data_);
    }
  }
  Zeroed(Zeroed&& other) noexcept { swap(other); }
  Zeroed& operator=(Zeroed&& other) noexcept {
    Zeroed taken(std::move(other));
    swap(taken);
    return *this;
  }

  template <typename T>
  T* as() const { return static_cast<T*>(data_); }
  int64_t size() const { return size_; }

  // Gives whole pages back to the system early: bytes `begin` to `end` are never read again.
  void give_back(int64_t begin, int64_t end) {
    CHECK(0 <= begin && begin <= end && end <= size_, begin, end, size_);
    begin = (begin + kPage - 1) / kPage * kPage, end = end / kPage * kPage;
    if (mapped() && begin < end) ::madvise(as<char>() + begin, static_cast<size_t>(end - begin), MADV_DONTNEED);
  }

 private:
  static constexpr int64_t kPage = 64 << 10;  // as large as any system's
  static constexpr int64_t kMapped = 256 << 10;
  static constexpr int64_t kHuge = 2 << 20;

  bool mapped() const { return size_ >= kMapped; }
  int64_t num_mapped() const { return (size_ + kPage - 1) / kPage * kPage; }

  // A large block begins where a huge page does, so that no part of it is in small ones but its end.
  void* map() const {
    const int64_t align = size_ >= kHuge ? kHuge : 0, size = num_mapped();
    void* p = ::mmap(nullptr, static_cast<size_t>(size + align), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                     -1, 0);
    if (p == MAP_FAILED || align == 0) return p == MAP_FAILED ? nullptr : p;
    char* begin = static_cast<char*>(p);
    const int64_t before = (align - reinterpret_cast<intptr_t>(p) % align) % align;
    if (before) ::munmap(begin, static_cast<size_t>(before));
    if (before < align) ::munmap(begin + before + size, static_cast<size_t>(align - before));
#ifdef MADV_HUGEPAGE
    ::madvise(begin + before, static_cast<size_t>(size), MADV_HUGEPAGE);
#endif
    return begin + before;
  }

  void swap(Zeroed& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }

  void* data_ = nullptr;
  int64_t size_ = 0;
};

// Allocates large pages, for memory that is read at random.
template <class T>
struct LargePages {
  using value_type = T;
  static constexpr size_t kPage = size_t{1} << 21;
  LargePages() = default;
  template <class U>
  LargePages(const LargePages<U>&) {}
  T* allocate(size_t n) {
    if (!is_large(n)) return std::allocator<T>().allocate(n);
    const size_t bytes = (n * sizeof(T) + kPage - 1) / kPage * kPage;
    void* p = std::aligned_alloc(kPage, bytes);
    if (p == nullptr) throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
    ::madvise(p, bytes, MADV_HUGEPAGE);
#endif
    return static_cast<T*>(p);
  }
  void deallocate(T* p, size_t n) {
    if (!is_large(n)) return std::allocator<T>().deallocate(p, n);
    std::free(p);
  }
  static bool is_large(size_t n) { return n * sizeof(T) >= kPage; }
  bool operator==(const LargePages&) const { return true; }
  bool operator!=(const LargePages&) const { return false; }
};
template <class T>
using Large = std::vector<T, LargePages<T>>;

// How many bytes are in use, of how many that may be. Threads share it.
class Budget {
 public:
  explicit Budget(int64_t limit) : limit_(limit) {}

  bool reserve(int64_t size) {
    CHECK(size >= 0, size);
    const int64_t used = used_.fetch_add(size) + size;
    if (used > limit_) {
      used_ -= size;
      return false;
    }
    int64_t peak = peak_;
    while (peak < used && !peak_.compare_exchange_weak(peak, used)) {
    }
    return true;
  }

  void release(int64_t size) {
    CHECK(size >= 0 && size <= used_, size, used_.load());
    used_ -= size;
  }
  int64_t used() const { return used_; }
  int64_t peak() const { return peak_; }
  int64_t limit() const { return limit_; }

 private:
  const int64_t limit_;
  std::atomic<int64_t> used_{0}, peak_{0};
};

}  // namespace hotrows
