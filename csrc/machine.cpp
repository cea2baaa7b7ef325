// What the machine offers: instruction sets, teams of threads, huge pages, and an allocator that keeps its
// memory.
#include "core.h"

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#endif
#ifdef __linux__
#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>
#endif

// The x86-64 micro-architecture level that this processor runs: 2, 3 or 4; 0 elsewhere.
HOTROWS_API int hotrows_cpu_level() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                  __builtin_cpu_supports("bmi2");
  const bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512vl");
  return v4 ? 4 : (v3 ? 3 : 2);
#else
  return 0;
#endif
}

// The calling thread has a team of so many from here on, 1 for one of several that compute side by side; returns how
// many it had. PyTorch's own loops use the same OpenMP where its library is loaded first, as it is.
HOTROWS_API int64_t hotrows_set_threads(int64_t threads) {
  const int before = omp_get_max_threads();
  omp_set_num_threads(static_cast<int>(threads));
  return before;
}

// Dissolves the team of the calling thread; its next loop forms a new one, of as many threads.
static void dissolve_team() {
  const int threads = omp_get_max_threads();
  omp_pause_resource_all(omp_pause_soft);
  omp_set_num_threads(threads);
}

// Makes OpenMP work in processes that fork, from here on; returns whether the system agreed. The child has
// the forking thread alone, and with GNU's library that thread would wait forever for the team that it had:
// so it has none while it forks. PyTorch's own loops use the same team, and work as well.
HOTROWS_API int hotrows_survive_forks() {
#if defined(__unix__) || defined(__APPLE__)
  return pthread_atfork(dissolve_team, nullptr, nullptr) == 0;
#else
  return 0;
#endif
}

// Asks for huge pages behind [data, data + size), before its first use: random rows then miss the
// TLB far less. Returns whether the system agreed.
HOTROWS_API int hotrows_advise_huge_pages(void* data, int64_t size) {
#ifdef __linux__
  const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t first = (reinterpret_cast<uintptr_t>(data) + page - 1) / page * page;
  const uintptr_t last = (reinterpret_cast<uintptr_t>(data) + static_cast<uintptr_t>(size)) / page * page;
  if (last <= first) return 0;
  return madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE) == 0;
#else
  (void)data, (void)size;
  return 0;
#endif
}

// Makes malloc keep freed memory instead of returning it to the system: a training step frees and
// asks for the same large blocks again and again, and pays a page fault for every 4 KiB of them
// otherwise. Concerns the whole process, so the trainer asks for it, never an import.
HOTROWS_API int hotrows_keep_freed_memory() {
#if defined(__GLIBC__)
  return mallopt(M_MMAP_MAX, 0) == 1 && mallopt(M_TRIM_THRESHOLD, -1) == 1 &&
         mallopt(M_TOP_PAD, 64 << 20) == 1;
#else
  return 0;
#endif
}
