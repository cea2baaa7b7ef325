// Advice to the system about mapped files that are read here and there, not from front to back.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

namespace hotrows {

inline uintptr_t page_size() {
  static const uintptr_t size = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  return size;
}

// Begins to read pages of mapped files that memory does not have, all of them at once, and waits for none.
class ReadAhead {
 public:
  void add(const void* begin, int64_t size) {
    const uintptr_t address = reinterpret_cast<uintptr_t>(begin), last = (address + size - 1) / page_size();
    for (uintptr_t page = address / page_size(); page <= last; ++page) {
      if (pages_.empty() || pages_.back() != page) pages_.push_back(page);
    }
  }

  void start() {
    std::sort(pages_.begin(), pages_.end());
    pages_.erase(std::unique(pages_.begin(), pages_.end()), pages_.end());
    for (size_t i = 0, end = 0; i < pages_.size(); i = end) {
      for (end = i + 1; end < pages_.size() && pages_[end] == pages_[i] + (end - i);) ++end;
      ::madvise(reinterpret_cast<void*>(pages_[i] * page_size()), (end - i) * page_size(), MADV_WILLNEED);
    }
    pages_.clear();
  }

 private:
  std::vector<uintptr_t> pages_;
};

}  // namespace hotrows
