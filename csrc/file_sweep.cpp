// Rewrites the changed records of a file in sorted sweeps.
//
//   rows, records -> spans of the file, each read, patched and written by one of a few threads
#include "file.h"

namespace hotrows {
namespace {

constexpr int64_t kChunk = 1 << 20;      // bytes of a file that one thread rewrites at a time
constexpr int64_t kSweepGap = 32 << 10;  // unchanged bytes that are cheaper rewritten than left out

// New records of a table's rows, written into its file chunk by chunk. A record may cross from one
// chunk into the next: each chunk writes its own part of it, so no two threads touch one block.
class Sweep {
 public:
  Sweep(int file, int64_t first, int64_t stride, const int64_t* rows, int64_t n, const char* records)
      : file_(file), first_(first), stride_(stride), rows_(rows), n_(n), records_(records) {
    CHECK(first >= 0 && stride > 0 && rises(rows, n) && (n == 0 || rows[0] >= 0), first, stride, n);
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t c = begin(i) / kChunk; c <= (end(i) - 1) / kChunk; ++c) {
        if (chunks_.empty() || chunks_.back().number < c) chunks_.push_back({c, i, i + 1});
        CHECK(c <= chunks_.back().number, c, chunks_.back().number);
        if (chunks_.back().number == c) chunks_.back().last = i + 1;
      }
    }
    if (kChecks) check_all();
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

  // Chunks rise and together have every byte of the records, each once.
  void check_all() const {
    int64_t size = 0;
    for (size_t c = 0; c < chunks_.size(); ++c) {
      const Chunk& chunk = chunks_[c];
      CHECK(c == 0 || chunk.number > chunks_[c - 1].number, c, chunk.number);
      for (int64_t i = chunk.first; i < chunk.last; ++i) {
        const int64_t low = std::max(begin(i), chunk.number * kChunk);
        const int64_t high = std::min(end(i), (chunk.number + 1) * kChunk);
        CHECK(low < high, c, i, low, high);
        size += high - low;
      }
    }
    CHECK(size == n_ * stride_, size, n_, stride_);
  }

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
      CHECK(last > i && from >= low && to <= high && covered <= to - from, i, last, from, to, covered);
      if (covered < to - from && !read(bytes, from, to)) return;
      for (; i < last; ++i) {
        const int64_t b = std::max(begin(i), low), e = std::min(end(i), high);
        CHECK(from <= b && b < e && e <= to, from, b, e, to);
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
