// Calls into a native core, loaded from the path given; prints a hash of the bytes that each call wrote. The same
// program with cores of two processors must print the same.
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kRows = 512, kIds = 4000, kDim = 20, kStateWidth = 2 * kDim, kStride = (kDim + kStateWidth + 1) * 4 };

static void* core;

static void* symbol(const char* name) {
  void* found = dlsym(core, name);
  if (!found) exit((fprintf(stderr, "%s\n", dlerror()), 1));
  return found;
}

static void print(const char* what, const void* data, size_t size) {
  uint64_t hash = 14695981039346656037u;
  for (size_t i = 0; i < size; ++i) hash = (hash ^ ((const uint8_t*)data)[i]) * 1099511628211u;
  printf("%s %016llx\n", what, (unsigned long long)hash);
}

static uint64_t random_bits(void) {
  static uint64_t state = 1;
  return (state = state * 6364136223846793005u + 1442695040888963407u) >> 33;
}

int main(int argc, char** argv) {
  core = argc == 2 ? dlopen(argv[1], RTLD_NOW) : NULL;
  if (!core) return fprintf(stderr, "%s\n", argc == 2 ? dlerror() : "expected the path of a core"), 1;

  // A batch: bags of three ids each, and its distinct rows.
  static int64_t ids[kIds], distinct[kIds];
  static int32_t inverse[kIds], order[kIds], starts[kIds + 1], bag_starts[kIds / 3 + 2];
  for (int i = 0; i < kIds; ++i) ids[i] = (int64_t)(random_bits() % kRows);
  int64_t (*unique)(const int64_t*, int64_t, int64_t*, int32_t*, int32_t*, int32_t*) = symbol("hotrows_unique");
  const int64_t n = unique(ids, kIds, distinct, inverse, order, starts);
  print("unique", distinct, (size_t)n * 8);
  print("inverse", inverse, sizeof inverse);
  const int64_t num_bags = (kIds + 2) / 3;
  for (int64_t m = 0; m <= num_bags; ++m) bag_starts[m] = m * 3 < kIds ? (int32_t)m * 3 : kIds;
  static int32_t bags[kIds];
  for (int i = 0; i < kIds; ++i) bags[i] = i / 3;
  static float weights[kIds], grad[(kIds + 2) / 3 * kDim], out[(kIds + 2) / 3 * kDim], scratch[kRows * kDim];
  for (int i = 0; i < kIds; ++i) weights[i] = (float)random_bits() / 2147483648.0f;
  for (int64_t i = 0; i < num_bags * kDim; ++i) grad[i] = (float)random_bits() / 2147483648.0f - 0.5f;

  // Rows of every rule: first values, lookup, sums of gradients, update.
  static uint8_t records[kRows * kStride];
  const int64_t first_rows[] = {0, kRows}, piece[] = {7, 0, 1, 0, kDim};
  static int64_t rows[kRows];
  for (int i = 0; i < kRows; ++i) rows[i] = i;
  const float state[kStateWidth] = {0};
  void (*initialize)(uint8_t*, const int64_t*, const int64_t*, int64_t, const int64_t*, const int64_t*, int64_t, int64_t,
                     double, const float*) = symbol("hotrows_initialize");
  void (*pool)(const uint8_t*, const int64_t*, const int64_t*, int64_t, const int32_t*, int64_t, const int32_t*,
               const float*, int64_t, float*, float*) = symbol("hotrows_pool");
  void (*sum_gradients)(const float*, int64_t, const int32_t*, const int32_t*, int64_t, const int32_t*, const float*,
                        float*) = symbol("hotrows_sum_gradients");
  void (*update)(uint8_t*, const int64_t*, const int64_t*, const int64_t*, int64_t, const int32_t*, const int32_t*,
                 const int32_t*, const float*, const float*, int64_t, const double*, int64_t, const int64_t*,
                 const int64_t*, int64_t, const float*, const float*) = symbol("hotrows_update");
  sum_gradients(grad, kDim, order, starts, n, bags, weights, scratch);
  print("sum_gradients", scratch, (size_t)n * kDim * 4);
  const char* const rules[] = {"sgd", "adagrad", "rowwise_adagrad", "adam", "ftrl"};
  const int64_t widths[] = {0, kDim, 1, 2 * kDim, 2 * kDim};
  const double hyper[][7] = {{0.1, 0.01}, {0.1, 0.01, 1e-8}, {0.1, 0.01, 1e-8},
                             {0.1, 0.01, 0.9, 0.999, 1e-8, 0.1, 0.001}, {0.1, 0, 0.01, 0.02, 1}};
  for (int rule = 0; rule < 5; ++rule) {
    for (int bits = 32; bits >= 4; bits /= 2) {  // below 32: stochastic rounding, too; below 16: with a scale
      const int64_t layout[] = {kDim, bits, (kDim * bits + 31) / 32 * 4 + 4 * (bits < 16), widths[rule], -1, kStride};
      memset(records, 0, sizeof records);
      initialize(records, layout, rows, kRows, first_rows, piece, 1, 1, 0.05, state);
      for (int64_t step = 0; step < 3; ++step)
        update(records, layout, distinct, distinct, n, order, starts, bags, weights, grad, rule, hyper[rule], step,
               first_rows, piece, 1, NULL, NULL);
      print(rules[rule], records, sizeof records);
      pool(records, layout, distinct, n, inverse, kIds, bag_starts, weights, num_bags, scratch, out);
      print("pool", out, (size_t)num_bags * kDim * 4);
    }
  }

  // Text to numbers, and keys to ids (where the core compares bytes sixteen at a time).
  char text[] = "1.5\t-7\tabc\n2e3\t0.1\tde\n.25\t1234567890123\tf\n";
  const int32_t wanted[] = {0, 1, 2}, columns[] = {0, 1};
  uint32_t begins[9], lengths[9];
  uint8_t changing[3] = {0};
  int64_t problem[2] = {0}, feature = 0;
  double values[6];
  int64_t (*tokenize)(char*, int64_t, int64_t, int64_t, int64_t, const int32_t*, int64_t, uint32_t*, uint32_t*, uint8_t*,
                      int64_t*, int64_t) = symbol("hotrows_tokenize");
  int64_t (*parse)(const char*, int64_t, const uint32_t*, const uint32_t*, int64_t, const int32_t*, int64_t, int64_t,
                   int64_t, double*, int64_t*, int64_t) = symbol("hotrows_parse_numbers");
  const int64_t size = (int64_t)sizeof text - 1;
  if (tokenize(text, size, '\t', 0, 3, wanted, 3, begins, lengths, changing, problem, 2) != 0) return 2;
  if (parse(text, size, begins, lengths, 3, columns, 2, '.', 0, values, &feature, 2) != -1) return 3;
  print("numbers", values, sizeof values);
  void* (*keys_new)(const int64_t*) = symbol("hotrows_keys_new");
  void (*feed)(void*, const int64_t*, int64_t) = symbol("hotrows_keys_feed");
  int64_t (*resolve)(void*, const int64_t*, int64_t, const int64_t*, int64_t*, int64_t*) = symbol("hotrows_keys_resolve");
  const int64_t settings[8] = {300, 1, 0, 0, 0, 0, 0, 0};
  void* const keys = keys_new(settings);
  int64_t counts[2];
  for (int batch = 0; batch < 4; ++batch) {
    feed(keys, ids + batch * 1000, 1000);
    if (resolve(keys, ids + batch * 1000, 1000, NULL, distinct, counts) != 0) return 4;
    print("keys", distinct, 1000 * 8);
  }
  return 0;
}
