// Ring: reads of a file that wait together in io_uring, where the system has it and permits it.
#pragma once

#include "file.h"

#if defined(__linux__) && __has_include(<linux/io_uring.h>)
#include <linux/io_uring.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#if defined(IORING_FEAT_RW_CUR_POS) && defined(__NR_io_uring_setup)
#define HOTROWS_RING 1
#endif
#endif

namespace hotrows {

#if HOTROWS_RING
class Ring {
 public:
  // depth: requests in flight at most. False where the system has no io_uring, or forbids it.
  bool open(char* staging, int64_t slot, int64_t depth) {
    io_uring_params params;
    std::memset(&params, 0, sizeof(params));
    fd_ = static_cast<int>(syscall(__NR_io_uring_setup, static_cast<unsigned>(depth), &params));
    if (fd_ < 0) return false;
    if (!(params.features & IORING_FEAT_SINGLE_MMAP) || !(params.features & IORING_FEAT_RW_CUR_POS)) return false;
    size_ = std::max(params.sq_off.array + params.sq_entries * sizeof(unsigned),
                     params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe));
    ring_ = map(size_, IORING_OFF_SQ_RING);
    num_entries_ = params.sq_entries;
    entries_ = reinterpret_cast<io_uring_sqe*>(map(num_entries_ * sizeof(io_uring_sqe), IORING_OFF_SQES));
    if (!ring_ || !entries_) return false;
    tail_ = reinterpret_cast<unsigned*>(ring_ + params.sq_off.tail);
    mask_ = *reinterpret_cast<unsigned*>(ring_ + params.sq_off.ring_mask);
    array_ = reinterpret_cast<unsigned*>(ring_ + params.sq_off.array);
    done_head_ = reinterpret_cast<unsigned*>(ring_ + params.cq_off.head);
    done_tail_ = reinterpret_cast<unsigned*>(ring_ + params.cq_off.tail);
    done_mask_ = *reinterpret_cast<unsigned*>(ring_ + params.cq_off.ring_mask);
    done_ = reinterpret_cast<io_uring_cqe*>(ring_ + params.cq_off.cqes);
    const iovec all = {staging, static_cast<size_t>(depth * slot)};
    registered_ = syscall(__NR_io_uring_register, fd_, IORING_REGISTER_BUFFERS, &all, 1) == 0;
    return true;
  }

  ~Ring() {
    if (ring_) munmap(ring_, size_);
    if (entries_) munmap(entries_, num_entries_ * sizeof(io_uring_sqe));
    if (fd_ >= 0) ::close(fd_);
  }

  void ask(int file, char* to, int64_t length, int64_t at, uint64_t name) {
    const unsigned tail = *tail_;
    CHECK(unsent_ < num_entries_ && length > 0 && at >= 0, unsent_, num_entries_, length, at);
    io_uring_sqe& entry = entries_[tail & mask_];
    std::memset(&entry, 0, sizeof(entry));
    entry.opcode = registered_ ? IORING_OP_READ_FIXED : IORING_OP_READ;
    entry.fd = file;
    entry.addr = reinterpret_cast<uint64_t>(to);
    entry.len = static_cast<unsigned>(length);
    entry.off = static_cast<uint64_t>(at);
    entry.user_data = name;
    array_[tail & mask_] = tail & mask_;
    __atomic_store_n(tail_, tail + 1, __ATOMIC_RELEASE);
    ++unsent_;
  }

  // Sends what was asked and waits until `least` answers are there.
  int64_t enter(unsigned least) {
    for (;;) {
      const int64_t sent = syscall(__NR_io_uring_enter, fd_, unsent_, least, IORING_ENTER_GETEVENTS, nullptr, 0);
      if (sent >= 0) {
        CHECK(sent <= static_cast<int64_t>(unsent_), sent, unsent_);
        unsent_ -= static_cast<unsigned>(sent);
        return 0;
      }
      if (errno == EAGAIN || errno == EBUSY) {
        if (__atomic_load_n(done_tail_, __ATOMIC_ACQUIRE) != *done_head_) return 0;
        std::this_thread::yield();
      } else if (errno != EINTR) {
        return -errno;
      }
    }
  }

  bool answer(uint64_t* name, int64_t* result) {
    const unsigned head = *done_head_;
    if (head == __atomic_load_n(done_tail_, __ATOMIC_ACQUIRE)) return false;
    *name = done_[head & done_mask_].user_data;
    *result = done_[head & done_mask_].res;
    __atomic_store_n(done_head_, head + 1, __ATOMIC_RELEASE);
    return true;
  }

 private:
  char* map(size_t size, off_t what) {
    void* const p = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd_, what);
    return p == MAP_FAILED ? nullptr : static_cast<char*>(p);
  }

  int fd_ = -1;
  bool registered_ = false;
  size_t size_ = 0, num_entries_ = 0;
  char* ring_ = nullptr;
  io_uring_sqe* entries_ = nullptr;
  io_uring_cqe* done_ = nullptr;
  unsigned *tail_ = nullptr, *array_ = nullptr, *done_head_ = nullptr, *done_tail_ = nullptr;
  unsigned mask_ = 0, done_mask_ = 0, unsent_ = 0;
};
#else
class Ring {
 public:
  bool open(char*, int64_t, int64_t) { return false; }
  void ask(int, char*, int64_t, int64_t, uint64_t) {}
  int64_t enter(unsigned) { return -ENOSYS; }
  bool answer(uint64_t*, int64_t*) { return false; }
};
#endif

}  // namespace hotrows
