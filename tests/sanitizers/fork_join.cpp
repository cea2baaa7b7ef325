// OpenMP as the thread sanitizer can see it: the calls that GCC makes of `#pragma omp`, over threads that
// are begun and joined anew in every region. libgomp is not built with the sanitizer and wakes its threads
// by futexes, so each access before a barrier of it would count as a race with each one after. Linked into
// the core, with hidden names, in its place.
//
// Chunks of a dynamic loop are dealt in turn, which is one of the orders that OpenMP allows: all threads
// take part however short the loop is, and no counter that they share puts them in an order.
#include <dlfcn.h>
#include <pthread.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <vector>

#define OMP_CALL extern "C" __attribute__((visibility("hidden")))

namespace {

// What a thread knows of its region, and of the loop that it is in.
struct Place {
  pthread_barrier_t* barrier = nullptr;
  uint64_t thread = 0, threads = 1;
  uint64_t first = 0, count = 0, chunk = 1, next = 0;
};

thread_local Place place;
std::mutex atomic_section;

// A function of PyTorch's libgomp, which knows how many threads this one is to use.
template <class Function>
Function of_libgomp(const char* name) {
  static void* const library = dlopen("libgomp.so.1", RTLD_LAZY);
  if (library == nullptr) std::abort();
  return reinterpret_cast<Function>(dlsym(library, name));
}

void wait_for_all() {
  if (place.threads > 1) pthread_barrier_wait(place.barrier);
}

template <class Number>
bool next_chunk(Number* first, Number* end) {
  if (place.next >= place.count) return false;
  *first = static_cast<Number>(place.first + place.next);
  *end = static_cast<Number>(place.first + std::min(place.next + place.chunk, place.count));
  place.next += place.chunk * place.threads;
  return true;
}

template <class Number>
bool first_chunk(bool counts_by_one, Number from, Number to, Number chunk, Number* first, Number* end) {
  if (!counts_by_one) std::abort();  // the core has no other loops
  place.first = static_cast<uint64_t>(from);
  place.count = to > from ? static_cast<uint64_t>(to - from) : 0;
  place.chunk = static_cast<uint64_t>(chunk);
  place.next = place.thread * place.chunk;
  return next_chunk(first, end);
}

}  // namespace

OMP_CALL int omp_get_thread_num() { return static_cast<int>(place.thread); }
OMP_CALL int omp_get_num_threads() { return static_cast<int>(place.threads); }
OMP_CALL int omp_get_max_threads() { return of_libgomp<int (*)()>("omp_get_max_threads")(); }
OMP_CALL void omp_set_num_threads(int n) { of_libgomp<void (*)(int)>("omp_set_num_threads")(n); }
OMP_CALL int omp_pause_resource_all(int) { return 0; }  // no thread outlives its region

OMP_CALL void GOMP_parallel(void (*run)(void*), void* data, unsigned asked, unsigned) {
  const Place outside = place;
  const unsigned most = asked != 0 ? asked : static_cast<unsigned>(omp_get_max_threads());
  const unsigned threads = outside.threads > 1 ? 1 : most;  // a region in a region has one thread
  pthread_barrier_t barrier;
  pthread_barrier_init(&barrier, nullptr, threads);
  const auto take_part = [&](unsigned thread) {
    place = Place{};
    place.barrier = &barrier;
    place.thread = thread;
    place.threads = threads;
    run(data);
  };
  std::vector<std::thread> others;
  for (unsigned thread = 1; thread < threads; ++thread) others.emplace_back(take_part, thread);
  take_part(0);
  for (std::thread& other : others) other.join();
  pthread_barrier_destroy(&barrier);
  place = outside;
}

OMP_CALL void GOMP_barrier() { wait_for_all(); }
OMP_CALL void GOMP_atomic_start() { atomic_section.lock(); }
OMP_CALL void GOMP_atomic_end() { atomic_section.unlock(); }

OMP_CALL bool GOMP_loop_nonmonotonic_dynamic_start(long from, long to, long step, long chunk, long* first,
                                                   long* end) {
  return first_chunk(step == 1, from, to, chunk, first, end);
}
OMP_CALL bool GOMP_loop_nonmonotonic_dynamic_next(long* first, long* end) { return next_chunk(first, end); }

using Unsigned = unsigned long long;
OMP_CALL bool GOMP_loop_ull_nonmonotonic_dynamic_start(bool is_up, Unsigned from, Unsigned to, Unsigned step,
                                                       Unsigned chunk, Unsigned* first, Unsigned* end) {
  return first_chunk(is_up && step == 1, from, to, chunk, first, end);
}
OMP_CALL bool GOMP_loop_ull_nonmonotonic_dynamic_next(Unsigned* first, Unsigned* end) {
  return next_chunk(first, end);
}

OMP_CALL void GOMP_loop_end() { wait_for_all(); }
OMP_CALL void GOMP_loop_end_nowait() {}
