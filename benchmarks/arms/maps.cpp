// Hash maps of others from int64 keys to ids, behind plain C symbols: looks keys up, new ones get the next
// id. Memory is counted in the allocator. ankerl::unordered_dense is built in where its header is found.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <utility>

#include <c10/util/flat_hash_map.h>
#if __has_include(<ankerl/unordered_dense.h>)
#include <ankerl/unordered_dense.h>
#define HAS_ANKERL
#endif

namespace {

int64_t num_bytes = 0;

template <class T>
struct Counting {
  using value_type = T;
  Counting() = default;
  template <class U>
  Counting(const Counting<U>&) {}
  T* allocate(size_t n) {
    num_bytes += static_cast<int64_t>(n * sizeof(T));
    return std::allocator<T>().allocate(n);
  }
  void deallocate(T* p, size_t n) {
    num_bytes -= static_cast<int64_t>(n * sizeof(T));
    std::allocator<T>().deallocate(p, n);
  }
  bool operator==(const Counting&) const { return true; }
  bool operator!=(const Counting&) const { return false; }
};

// The same hash for all: the finalizer of splitmix64.
struct Mix {
  using is_avalanching = void;
  uint64_t operator()(int64_t key) const {
    uint64_t x = static_cast<uint64_t>(key);
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
  }
};

using Pair = std::pair<int64_t, int64_t>;
using ConstPair = std::pair<const int64_t, int64_t>;

struct Map {
  virtual ~Map() = default;
  virtual void resolve(const int64_t* keys, int64_t n, int64_t* ids) = 0;
};

template <class Table>
struct MapOf : Map {
  Table table;
  void resolve(const int64_t* keys, int64_t n, int64_t* ids) override {
    for (int64_t i = 0; i < n; ++i) ids[i] = table.try_emplace(keys[i], static_cast<int64_t>(table.size())).first->second;
  }
};

// Has no try_emplace.
template <>
struct MapOf<ska::flat_hash_map<int64_t, int64_t, Mix, std::equal_to<int64_t>, Counting<Pair>>> : Map {
  ska::flat_hash_map<int64_t, int64_t, Mix, std::equal_to<int64_t>, Counting<Pair>> table;
  void resolve(const int64_t* keys, int64_t n, int64_t* ids) override {
    for (int64_t i = 0; i < n; ++i) ids[i] = table.emplace(keys[i], static_cast<int64_t>(table.size())).first->second;
  }
};

}  // namespace

// kind: 0 std::unordered_map, 1 ska::flat_hash_map (as PyTorch has it), 2 ankerl::unordered_dense; null
// where it was not built in.
extern "C" void* map_new(int64_t kind) {
  using Equal = std::equal_to<int64_t>;
  if (kind == 0) return new MapOf<std::unordered_map<int64_t, int64_t, Mix, Equal, Counting<ConstPair>>>;
  if (kind == 1) return new MapOf<ska::flat_hash_map<int64_t, int64_t, Mix, Equal, Counting<Pair>>>;
#ifdef HAS_ANKERL
  if (kind == 2) return new MapOf<ankerl::unordered_dense::map<int64_t, int64_t, Mix, Equal, Counting<Pair>>>;
  if (kind == 3) return new MapOf<ankerl::unordered_dense::segmented_map<int64_t, int64_t, Mix, Equal, Counting<Pair>>>;
#endif
  return nullptr;
}

extern "C" void map_resolve(void* map, const int64_t* keys, int64_t n, int64_t* ids) {
  static_cast<Map*>(map)->resolve(keys, n, ids);
}

extern "C" int64_t map_num_bytes() { return num_bytes; }
extern "C" void map_free(void* map) { delete static_cast<Map*>(map); }
