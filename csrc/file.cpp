// Records in files: where a row stands in a log, reading many records at once, and rewriting the
// changed ones in sorted sweeps.
//
//   fetch   records -> requests (neighbours in one) -> a ring of requests in flight -> out
//   sweep   rows, records -> spans of the file, each read, patched and written by one of a few threads
//
// Reads wait together: io_uring keeps kDepth requests in flight from one thread, where the system
// has it and permits it; elsewhere threads wait in pread. Files opened for direct I/O want places,
// lengths and buffers that are multiples of `align`; `align` is 1 for others. Indexes and fetchers
// are handles that the caller creates and destroys. Failures are negative errno values.
#include "core.h"

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>

#include <unistd.h>

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
namespace {

constexpr int64_t kPage = 4096;
constexpr int64_t kChunk = 1 << 20;       // bytes of a file that one thread rewrites at a time
constexpr int64_t kSweepGap = 32 << 10;   // unchanged bytes that are cheaper rewritten than left out
constexpr int64_t kReadGap = 16 << 10;    // unwanted bytes that are cheaper read than left out
constexpr int64_t kRequest = 64 << 10;    // longest request
constexpr int64_t kDepth = 128;           // requests in flight
constexpr int64_t kReadThreads = 16;
constexpr int64_t kCutOff = -100000;      // "the file ends before": no errno says it

int64_t down(int64_t at, int64_t to) { return at / to * to; }
int64_t up(int64_t at, int64_t to) { return (at + to - 1) / to * to; }

struct Freed {
  void operator()(void* p) const { std::free(p); }
};
using Buffer = std::unique_ptr<char, Freed>;

Buffer buffer(int64_t size) {
  void* p = nullptr;
  if (posix_memalign(&p, kPage, static_cast<size_t>(size))) throw std::bad_alloc();
  return Buffer(static_cast<char*>(p));
}

// row -> place: open addressing, linear probing. Stored rows are one up, so that zeroed memory, which
// the system gives page by page as it is used, is an empty table.
class Index {
 public:
  Index() { allot(1 << 12); }

  // places[i] = first + i * stride for rows[i].
  void put(const int64_t* rows, int64_t n, int64_t first, int64_t stride) {
    const std::lock_guard<std::mutex> lock(mutex_);
    while ((used_ + n) * 4 > static_cast<int64_t>(mask_ + 1) * 3) grow();
    for (int64_t i = 0; i < n; ++i) {
      if (i + kAhead < n) prefetch_for_write(&slots_.get()[home(rows[i + kAhead])]);
      Slot& slot = at(rows[i]);
      used_ += slot.row == 0;
      slot = {rows[i] + 1, first + i * stride};
    }
  }

  // places[i] = where rows[i] stands, -1 where it is not here.
  void find(const int64_t* rows, int64_t n, int64_t* places) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (int64_t i = 0; i < n; ++i) {
      if (i + kAhead < n) prefetch(&slots_.get()[home(rows[i + kAhead])]);
      const Slot& slot = at(rows[i]);
      places[i] = slot.row ? slot.place : -1;
    }
  }

  int64_t size() const { return used_; }

 private:
  struct Slot {
    int64_t row, place;
  };
  static constexpr int64_t kAhead = 16;

  uint64_t home(int64_t row) const { return mix64(static_cast<uint64_t>(row)) & mask_; }

  Slot& at(int64_t row) {
    uint64_t i = home(row);
    while (slots_.get()[i].row != 0 && slots_.get()[i].row != row + 1) i = (i + 1) & mask_;
    return slots_.get()[i];
  }

  void allot(uint64_t size) {
    Slot* const slots = static_cast<Slot*>(std::calloc(size, sizeof(Slot)));
    if (!slots) throw std::bad_alloc();
    slots_.reset(slots);
    mask_ = size - 1;
  }

  void grow() {
    const std::unique_ptr<Slot, Freed> old = std::move(slots_);
    const uint64_t size = mask_ + 1;
    allot(2 * size);
    for (uint64_t i = 0; i < size; ++i) {
      if (old.get()[i].row) at(old.get()[i].row - 1) = old.get()[i];
    }
  }

  std::mutex mutex_;
  std::unique_ptr<Slot, Freed> slots_;
  uint64_t mask_ = 0;
  std::atomic<int64_t> used_{0};
};

// Some records that stand close together in a file, read at once.
struct Request {
  int64_t begin, needed, end;  // the last record ends at `needed`; `end` is aligned
  int64_t first, last;         // of the ordered records
  int64_t done = 0;            // bytes read so far
};

struct Wanted {
  const int64_t* places;
  const int64_t* targets;
  int64_t stride, align;
  char* out;
  std::vector<int64_t> order;
  std::vector<Request> requests;

  Wanted(const int64_t* places, const int64_t* targets, int64_t n, int64_t stride, int64_t align,
         char* out, int64_t longest)
      : places(places), targets(targets), stride(stride), align(align), out(out), order(n) {
    for (int64_t i = 0; i < n; ++i) order[i] = i;
    if (!std::is_sorted(places, places + n)) {
      std::sort(order.begin(), order.end(), [=](int64_t a, int64_t b) { return places[a] < places[b]; });
    }
    for (int64_t i = 0; i < n; ++i) {
      const int64_t place = places[order[i]], needed = place + stride;
      const int64_t begin = down(place, align), end = up(needed, align);
      if (requests.empty() || begin - requests.back().end > kReadGap ||
          end - requests.back().begin > longest) {
        requests.push_back({begin, needed, end, i, i + 1});
        continue;
      }
      Request& last = requests.back();
      last.needed = needed, last.end = end, last.last = i + 1;
    }
  }

  // What a read of `result` bytes means: 0 to read on, 1 when all is there, else the failure.
  int64_t advance(Request& request, int64_t result, const char* bytes) const {
    if (result == -EAGAIN || result == -EINTR) return 0;
    if (result < 0) return result;
    if (request.begin + request.done + result < request.needed) {
      const int64_t whole = down(result, align);
      if (whole == 0) return kCutOff;
      request.done += whole;
      return 0;
    }
    for (int64_t i = request.first; i < request.last; ++i) {
      const int64_t record = order[i];
      std::memcpy(out + targets[record] * stride, bytes + places[record] - request.begin, stride);
    }
    return 1;
  }
};

#if HOTROWS_RING
class Ring {
 public:
  // False where the system has no io_uring, or forbids it.
  bool open(char* staging, int64_t slot) {
    io_uring_params params;
    std::memset(&params, 0, sizeof(params));
    fd_ = static_cast<int>(syscall(__NR_io_uring_setup, kDepth, &params));
    if (fd_ < 0) return false;
    if (!(params.features & IORING_FEAT_SINGLE_MMAP) || !(params.features & IORING_FEAT_RW_CUR_POS)) return false;
    size_ = std::max(params.sq_off.array + params.sq_entries * sizeof(unsigned),
                     params.cq_off.cqes + params.cq_entries * sizeof(io_uring_cqe));
    ring_ = map(size_, IORING_OFF_SQ_RING);
    entries_ = reinterpret_cast<io_uring_sqe*>(map(kDepth * sizeof(io_uring_sqe), IORING_OFF_SQES));
    if (!ring_ || !entries_) return false;
    tail_ = reinterpret_cast<unsigned*>(ring_ + params.sq_off.tail);
    mask_ = *reinterpret_cast<unsigned*>(ring_ + params.sq_off.ring_mask);
    array_ = reinterpret_cast<unsigned*>(ring_ + params.sq_off.array);
    done_head_ = reinterpret_cast<unsigned*>(ring_ + params.cq_off.head);
    done_tail_ = reinterpret_cast<unsigned*>(ring_ + params.cq_off.tail);
    done_mask_ = *reinterpret_cast<unsigned*>(ring_ + params.cq_off.ring_mask);
    done_ = reinterpret_cast<io_uring_cqe*>(ring_ + params.cq_off.cqes);
    const iovec all = {staging, static_cast<size_t>(kDepth * slot)};
    registered_ = syscall(__NR_io_uring_register, fd_, IORING_REGISTER_BUFFERS, &all, 1) == 0;
    return true;
  }

  ~Ring() {
    if (ring_) munmap(ring_, size_);
    if (entries_) munmap(entries_, kDepth * sizeof(io_uring_sqe));
    if (fd_ >= 0) ::close(fd_);
  }

  void ask(int file, char* to, int64_t length, int64_t at, uint64_t name) {
    const unsigned tail = *tail_;
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
  size_t size_ = 0;
  char* ring_ = nullptr;
  io_uring_sqe* entries_ = nullptr;
  io_uring_cqe* done_ = nullptr;
  unsigned *tail_ = nullptr, *array_ = nullptr, *done_head_ = nullptr, *done_tail_ = nullptr;
  unsigned mask_ = 0, done_mask_ = 0, unsent_ = 0;
};
#else
class Ring {
 public:
  bool open(char*, int64_t) { return false; }
  void ask(int, char*, int64_t, int64_t, uint64_t) {}
  int64_t enter(unsigned) { return -ENOSYS; }
  bool answer(uint64_t*, int64_t*) { return false; }
};
#endif

// Fetches records; one thread at a time uses it.
class Fetcher {
 public:
  Fetcher(int64_t stride, bool ring)
      : slot_(std::max(kRequest, up(stride, kPage) + 2 * kPage)), staging_(buffer(kDepth * slot_)) {
    if (!ring) return;
    ring_ = std::make_unique<Ring>();
    if (!ring_->open(staging_.get(), slot_)) ring_.reset();
  }

  bool has_ring() const { return ring_ != nullptr; }

  // Every n-th read asks for one aligned piece only, for tests of what follows a short read.
  void shorten(int64_t n) { shorten_ = n; }

  int64_t fetch(int file, Wanted& wanted, int64_t* failed_at) {
    return ring_ ? fetch_by_ring(file, wanted, failed_at) : fetch_by_threads(file, wanted, failed_at);
  }

  int64_t longest() const { return slot_; }

 private:
  int64_t length(const Request& request, int64_t align) {
    const int64_t whole = request.end - request.begin - request.done;
    return shorten_ && ++count_ % shorten_ == 0 ? std::min(align, whole) : whole;
  }

  int64_t fetch_by_ring(int file, Wanted& wanted, int64_t* failed_at) {
    std::vector<int64_t> in_slot(kDepth);  // which request
    std::vector<int64_t> free(kDepth);
    for (int64_t i = 0; i < kDepth; ++i) free[i] = i;
    const auto ask = [&](int64_t slot) {
      const Request& r = wanted.requests[in_slot[slot]];
      ring_->ask(file, staging_.get() + slot * slot_ + r.done, length(r, wanted.align), r.begin + r.done, slot);
    };
    int64_t failure = 0;
    const int64_t count = static_cast<int64_t>(wanted.requests.size());
    for (int64_t next = 0, in_flight = 0; in_flight || (next < count && !failure);) {
      while (next < count && !free.empty() && !failure) {
        in_slot[free.back()] = next++;
        ask(free.back());
        free.pop_back();
        ++in_flight;
      }
      // Answers are taken a few at a time: fewer system calls, and the ring never runs dry.
      const int64_t least = next < count ? std::min<int64_t>(in_flight, kDepth / 4) : in_flight;
      if (const int64_t refused = ring_->enter(static_cast<unsigned>(least))) return refused;
      uint64_t slot;
      int64_t result;
      while (ring_->answer(&slot, &result)) {
        Request& request = wanted.requests[in_slot[slot]];
        const int64_t state = wanted.advance(request, result, staging_.get() + slot * slot_);
        if (state == 0 && !failure) {
          ask(slot);
          continue;
        }
        if (state < 0 && !failure) failure = state, *failed_at = request.begin + request.done;
        free.push_back(slot);
        --in_flight;
      }
    }
    return failure;
  }

  int64_t fetch_by_threads(int file, Wanted& wanted, int64_t* failed_at) {
    const int64_t count = static_cast<int64_t>(wanted.requests.size());
    std::atomic<int64_t> next{0}, failure{0}, at{0};
    const auto work = [&](int64_t thread) {
      char* const bytes = staging_.get() + thread * slot_;
      for (int64_t i = next++; i < count && !failure; i = next++) {
        Request& r = wanted.requests[i];
        for (int64_t state = 0; state == 0;) {
          const int64_t got = pread(file, bytes + r.done, length(r, wanted.align), r.begin + r.done);
          state = wanted.advance(r, got < 0 ? -errno : got, bytes);
          if (state < 0) failure = state, at = r.begin + r.done;
        }
      }
    };
    std::vector<std::thread> threads;
    try {
      for (int64_t i = 1; i < std::min(kReadThreads, count / 8); ++i) threads.emplace_back(work, i);
    } catch (const std::system_error&) {  // fewer threads, then
    }
    work(0);
    for (std::thread& thread : threads) thread.join();
    *failed_at = at;
    return failure;
  }

  int64_t slot_;
  Buffer staging_;
  std::unique_ptr<Ring> ring_;
  int64_t shorten_ = 0;
  std::atomic<int64_t> count_{0};
};

// New records of a table's rows, written into its file chunk by chunk. A record may cross from one
// chunk into the next: each chunk writes its own part of it, so no two threads touch one block.
class Sweep {
 public:
  Sweep(int file, int64_t first, int64_t stride, const int64_t* rows, int64_t n, const char* records)
      : file_(file), first_(first), stride_(stride), rows_(rows), n_(n), records_(records) {
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t c = begin(i) / kChunk; c <= (end(i) - 1) / kChunk; ++c) {
        if (chunks_.empty() || chunks_.back().number < c) chunks_.push_back({c, i, i + 1});
        if (chunks_.back().number == c) chunks_.back().last = i + 1;
      }
    }
  }

  int64_t run(int64_t num_threads, int64_t* failed_at) {
    const auto work = [this] {
      try {
        const Buffer bytes = buffer(kChunk);
        for (size_t i = next_++; i < chunks_.size() && !failure_; i = next_++) rewrite(chunks_[i], bytes.get());
      } catch (const std::bad_alloc&) {
        failure_ = -ENOMEM;
      }
    };
    std::vector<std::thread> threads;
    const int64_t most = std::min(num_threads, static_cast<int64_t>(chunks_.size()));
    try {
      for (int64_t i = 1; i < most; ++i) threads.emplace_back(work);
    } catch (const std::system_error&) {
    }
    work();
    for (std::thread& thread : threads) thread.join();
    *failed_at = failed_at_;
    return failure_;
  }

  int64_t bytes_read() const { return bytes_read_; }
  int64_t bytes_written() const { return bytes_written_; }

 private:
  struct Chunk {
    int64_t number, first, last;
  };

  int64_t begin(int64_t i) const { return first_ + rows_[i] * stride_; }
  int64_t end(int64_t i) const { return begin(i) + stride_; }

  void rewrite(const Chunk& chunk, char* bytes) {
    const int64_t low = chunk.number * kChunk, high = low + kChunk;
    for (int64_t i = chunk.first; i < chunk.last && !failure_;) {
      const int64_t from = down(std::max(begin(i), low), kPage);
      int64_t to = from, covered = 0, last = i;
      for (; last < chunk.last; ++last) {
        const int64_t b = std::max(begin(last), low), e = std::min(end(last), high);
        if (last > i && down(b, kPage) - to > kSweepGap) break;
        to = up(e, kPage);
        covered += e - b;
      }
      if (covered < to - from && !read(bytes, from, to)) return;
      for (; i < last; ++i) {
        const int64_t b = std::max(begin(i), low), e = std::min(end(i), high);
        std::memcpy(bytes + b - from, records_ + i * stride_ + b - begin(i), e - b);
      }
      if (!write(bytes, from, to)) return;
    }
  }

  bool read(char* bytes, int64_t from, int64_t to) {
    for (int64_t at = from; at < to;) {
      const int64_t got = pread(file_, bytes + at - from, to - at, at);
      if (got < 0 && errno == EINTR) continue;
      if (got < kPage && got != to - at) return fail(got < 0 ? -errno : kCutOff, at);
      at += down(got, kPage);
    }
    bytes_read_ += to - from;
    return true;
  }

  bool write(const char* bytes, int64_t from, int64_t to) {
    for (int64_t at = from; at < to;) {
      const int64_t put = pwrite(file_, bytes + at - from, to - at, at);
      if (put < 0 && errno == EINTR) continue;
      if (put < kPage) return fail(put < 0 ? -errno : -ENOSPC, at);
      at += down(put, kPage);
    }
    bytes_written_ += to - from;
    return true;
  }

  bool fail(int64_t failure, int64_t at) {
    failed_at_ = at;
    failure_ = failure;
    return false;
  }

  int file_;
  int64_t first_, stride_;
  const int64_t* rows_;
  int64_t n_;
  const char* records_;
  std::vector<Chunk> chunks_;
  std::atomic<size_t> next_{0};
  std::atomic<int64_t> failure_{0}, failed_at_{0}, bytes_read_{0}, bytes_written_{0};
};

}  // namespace
}  // namespace hotrows

using namespace hotrows;

HOTROWS_API void* hotrows_file_index_new() {
  try {
    return new Index();
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

HOTROWS_API void hotrows_file_index_free(void* index) { delete static_cast<Index*>(index); }

HOTROWS_API int64_t hotrows_file_index_size(void* index) { return static_cast<Index*>(index)->size(); }

// Row rows[i] stands at first + i * stride from now on.
HOTROWS_API int64_t hotrows_file_index_put(void* index, const int64_t* rows, int64_t n, int64_t first,
                                           int64_t stride) {
  try {
    static_cast<Index*>(index)->put(rows, n, first, stride);
    return 0;
  } catch (const std::bad_alloc&) {
    return -ENOMEM;
  }
}

// places[i] = where rows[i] stands, -1 where the index does not have it.
HOTROWS_API int64_t hotrows_file_index_find(void* index, const int64_t* rows, int64_t n, int64_t* places) {
  static_cast<Index*>(index)->find(rows, n, places);
  return 0;
}

// ring: whether io_uring may be used. Null where memory is missing.
HOTROWS_API void* hotrows_file_fetcher_new(int64_t stride, int ring) {
  try {
    return new Fetcher(stride, ring != 0);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

HOTROWS_API void hotrows_file_fetcher_free(void* fetcher) { delete static_cast<Fetcher*>(fetcher); }

HOTROWS_API int64_t hotrows_file_fetcher_has_ring(void* fetcher) {
  return static_cast<Fetcher*>(fetcher)->has_ring();
}

HOTROWS_API void hotrows_file_fetcher_shorten(void* fetcher, int64_t n) {
  static_cast<Fetcher*>(fetcher)->shorten(n);
}

// out[targets[i]] = the stride bytes at places[i] of the file, for i < n. seen: requests made, bytes
// read, and where it failed. Returns 0, a negative errno, or -100000 where the file ends too early.
HOTROWS_API int64_t hotrows_file_fetch(void* fetcher, int64_t file, int64_t align, const int64_t* places,
                                       const int64_t* targets, int64_t n, int64_t stride, char* out,
                                       int64_t* seen) {
  try {
    Fetcher& by = *static_cast<Fetcher*>(fetcher);
    Wanted wanted(places, targets, n, stride, align, out, by.longest());
    seen[0] = static_cast<int64_t>(wanted.requests.size());
    for (const Request& request : wanted.requests) seen[1] += request.end - request.begin;
    return by.fetch(file, wanted, &seen[2]);
  } catch (const std::bad_alloc&) {
    return -ENOMEM;
  }
}

// Writes records[i] to row rows[i], ascending, of the table whose records begin at `first` of the
// file; everything else keeps its bytes. seen: bytes read, bytes written, where it failed.
HOTROWS_API int64_t hotrows_file_sweep(int64_t file, int64_t first, int64_t stride, const int64_t* rows,
                                       int64_t n, const char* records, int64_t num_threads,
                                       int64_t* seen) {
  try {
    Sweep sweep(file, first, stride, rows, n, records);
    const int64_t failure = sweep.run(num_threads, &seen[2]);
    seen[0] = sweep.bytes_read(), seen[1] = sweep.bytes_written();
    return failure;
  } catch (const std::bad_alloc&) {
    return -ENOMEM;
  }
}

// What direct I/O on this file must be aligned to: 512, 4096, or 1 where it takes anything; 0 where
// it cannot be used.
HOTROWS_API int64_t hotrows_file_alignment(int64_t file) {
  try {
    const Buffer bytes = buffer(2 * kPage);
    for (const int64_t align : {int64_t{512}, kPage}) {
      if (pread(file, bytes.get() + align, align, 0) == align) return align;
    }
  } catch (const std::bad_alloc&) {
  }
  return 0;
}
