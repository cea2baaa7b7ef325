// Names of what Python passes by number: the codes of kinds, and the int64 fields of structs. Enums and structs
// are made of these lists, and Python compares them with its own when it loads the core (native.codes), so that
// an order that differs is an error there and no wrong row here.
#pragma once

#include <cstdint>

// clang-format off
#define HOTROWS_ROW_OPTIMIZERS(name) name(sgd) name(adagrad) name(rowwise_adagrad) name(adam) name(ftrl)
#define HOTROWS_INITIALIZERS(name) name(constant) name(uniform) name(normal)
#define HOTROWS_RECORD_LAYOUT(name) \
  name(dim) name(bits) name(state_offset) name(state_width) name(step_offset) name(stride)
#define HOTROWS_PIECE(name) name(key) name(first_id) name(id_step) name(first_column) name(num_columns)
#define HOTROWS_DEFERRED_RULES(name) name(sgd) name(adagrad) name(rmsprop) name(adam)
#define HOTROWS_RECURRENT_KINDS(name) name(gru) name(augru) name(augru_code) name(agru)
#define HOTROWS_TARGET_ACTIVATIONS(name) name(sigmoid) name(prelu) name(relu) name(tanh) name(none)
#define HOTROWS_KEY_ADMISSIONS(name) name(first) name(after) name(sketch) name(probability) name(ahead) name(frequent)
#define HOTROWS_KEY_EVICTIONS(name) name(none) name(lru) name(lfu) name(ahead) name(idle) name(time)
#define HOTROWS_KEY_SETTINGS(name)                                                                 \
  name(capacity) name(num_unknown) name(admission) name(reads) name(probability) name(sketch_width) \
      name(eviction) name(limit)
#define HOTROWS_KEY_TOTALS(name) \
  name(rows) name(admitted) name(evicted) name(refused) name(sketch_place) name(time)
#define HOTROWS_DEFERRED_TARGET(field)                                                              \
  field(uint8_t*, weights) field(int64_t, weights_stride) field(uint8_t*, first_state)              \
      field(uint8_t*, second_state) field(int64_t, states_stride) field(uint8_t*, lasts)            \
      field(int64_t, lasts_stride) field(int64_t, num_rows) field(Numbers, steps) field(int64_t, first) \
      field(int64_t, now) field(int64_t, first_decay)
#define HOTROWS_ROUTE(name) name(hot) name(first_hot) name(num_sharing) name(first_rank)
#define HOTROWS_SLOT_CASES(name) name(overlapped) name(drained) name(passes_through)
#define HOTROWS_TEXT_PROBLEMS(name) name(none) name(columns) name(unclosed) name(after_quote)
// clang-format on

#define HOTROWS_ENUMERATOR(name) name,
#define HOTROWS_FIELD(name) int64_t name;
#define HOTROWS_TYPED_FIELD(type, name) type name;

namespace hotrows {

enum class RowOptimizer : int64_t { HOTROWS_ROW_OPTIMIZERS(HOTROWS_ENUMERATOR) };
enum class Initializer : int64_t { HOTROWS_INITIALIZERS(HOTROWS_ENUMERATOR) };
enum class DeferredRule : int { HOTROWS_DEFERRED_RULES(HOTROWS_ENUMERATOR) };
enum class RecurrentKind : int64_t { HOTROWS_RECURRENT_KINDS(HOTROWS_ENUMERATOR) };
enum class TargetActivation : int64_t { HOTROWS_TARGET_ACTIVATIONS(HOTROWS_ENUMERATOR) };
enum class Admission : int64_t { HOTROWS_KEY_ADMISSIONS(HOTROWS_ENUMERATOR) };
enum class SlotCase : int64_t { HOTROWS_SLOT_CASES(HOTROWS_ENUMERATOR) mismatch = -1 };
enum class TextProblem : int64_t { HOTROWS_TEXT_PROBLEMS(HOTROWS_ENUMERATOR) };
enum class Eviction : int64_t { HOTROWS_KEY_EVICTIONS(HOTROWS_ENUMERATOR) };

}  // namespace hotrows
