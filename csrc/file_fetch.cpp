// Reads many records of a file at once.
//
//   records -> requests (neighbours in one) -> a ring of requests in flight -> out
//
// io_uring keeps kDepth requests in flight from one thread; where there is none, kThreads wait in pread.
// Both by measurement: `benchmarks.store depths` at tag `studies`.
// Fetchers are handles that the caller creates and destroys.
#include "ring.h"

namespace hotrows {
namespace {

constexpr int64_t kReadGap = 16 << 10;  // unwanted bytes that are cheaper read than left out
constexpr int64_t kRequest = 64 << 10;  // longest request
constexpr int64_t kDepth = 128, kThreads = 32;

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
    CHECK(are_within(places, n, 0, INT64_MAX) && are_within(targets, n, 0, INT64_MAX), n);
    CHECK(stride > 0 && align > 0 && up(stride, align) + align <= longest, stride, align, longest);
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
    if (kChecks) check_all(longest);
  }

  // Requests cover all records, in order, none twice; each has room in a slot of the staging buffer.
  void check_all(int64_t longest) const {
    int64_t next = 0, end = 0;
    for (const Request& r : requests) {
      CHECK(r.first == next && r.first < r.last, r.first, next, r.last);
      CHECK(r.begin % align == 0 && r.end % align == 0 && r.end - r.begin <= longest, r.begin, r.end, longest);
      CHECK(r.begin < r.needed && r.needed <= r.end && r.end >= end, r.begin, r.needed, r.end);
      for (int64_t i = r.first; i < r.last; ++i)
        CHECK(places[order[i]] >= r.begin && places[order[i]] + stride <= r.needed, i, places[order[i]]);
      next = r.last, end = r.end;
    }
    CHECK(next == static_cast<int64_t>(order.size()), next, order.size());
  }

  // What a read of `result` bytes means: 0 to read on, 1 when all is there, else the failure.
  int64_t advance(Request& request, int64_t result, const char* bytes) const {
    if (result == -EAGAIN || result == -EINTR) return 0;
    if (result < 0) return result;
    CHECK(request.begin + request.done + result <= request.end, request.begin, request.done, result, request.end);
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

// Fetches records; one thread at a time uses it.
class Fetcher {
 public:
  // depth: requests in flight at most; 0: kDepth, or kThreads where threads wait.
  Fetcher(int64_t stride, bool ring, int64_t depth)
      : slot_(std::max(kRequest, up(stride, kPage) + 2 * kPage)), depth_(depth ? depth : kDepth),
        staging_(buffer(depth_ * slot_)) {
    if (ring) ring_ = std::make_unique<Ring>();
    if (ring && !ring_->open(staging_.get(), slot_, depth_)) ring_.reset();
    if (!ring_ && depth == 0) depth_ = kThreads;
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
    std::vector<int64_t> in_slot(depth_);  // which request
    std::vector<int64_t> free(depth_);
    for (int64_t i = 0; i < depth_; ++i) free[i] = i;
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
      const int64_t least = next < count ? std::min(in_flight, std::max<int64_t>(depth_ / 4, 1)) : in_flight;
      if (ring_->enter(static_cast<unsigned>(least)) != 0) {
        leave_ring();
        for (Request& request : wanted.requests) request.done = 0;
        return fetch_by_threads(file, wanted, failed_at);
      }
      uint64_t slot;
      int64_t result;
      while (ring_->answer(&slot, &result)) {
        CHECK(slot < in_slot.size() && in_slot[slot] < next && in_flight > 0, slot, next, in_flight);
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

  // What is in flight may still be answered, and written to the old staging, which is left to it.
  void leave_ring() {
    ring_.reset();
    Buffer fresh = buffer(depth_ * slot_);
    static_cast<void>(staging_.release());  // NOLINT(bugprone-unused-return-value)
    staging_ = std::move(fresh);
    depth_ = std::min(depth_, kThreads);
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
      for (int64_t i = 1; i < std::min(depth_, count / 8); ++i) threads.emplace_back(work, i);
    } catch (const std::system_error&) {  // fewer threads, then
    }
    work(0);
    for (std::thread& thread : threads) thread.join();
    *failed_at = at;
    return failure;
  }

  int64_t slot_, depth_;
  Buffer staging_;
  std::unique_ptr<Ring> ring_;
  int64_t shorten_ = 0;
  std::atomic<int64_t> count_{0};
};

}  // namespace
}  // namespace hotrows

using namespace hotrows;

// ring: whether io_uring may be used; depth: see `Fetcher`. Null where memory is missing.
HOTROWS_API void* hotrows_file_fetcher_new(int64_t stride, int ring, int64_t depth) {
  try {
    return new Fetcher(stride, ring != 0, depth);
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
