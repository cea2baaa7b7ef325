// A CHECK whose condition counts how often it is evaluated, and one whose value may be read only where it does not hold.
#include "../../csrc/check.h"

extern "C" __attribute__((visibility("default"))) int64_t hotrows_probe(int64_t n, int64_t holds) {
  int64_t evaluated = 0;
  CHECK(++evaluated && holds, n);
  const int64_t* const none = nullptr;
  CHECK(none == nullptr || *none == 0, *none);
  return evaluated;
}
