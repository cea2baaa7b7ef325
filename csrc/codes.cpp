// What `native.codes` compares: a line for each list, its name and its names in order.
#include "codes.h"

#include "core.h"

#define NAME(name) " " #name
#define TYPED_NAME(type, name) " " #name

// clang-format off
HOTROWS_API const char* hotrows_codes() {
  return "row_optimizer" HOTROWS_ROW_OPTIMIZERS(NAME) "\n"
         "initializer" HOTROWS_INITIALIZERS(NAME) "\n"
         "record_layout" HOTROWS_RECORD_LAYOUT(NAME) "\n"
         "piece" HOTROWS_PIECE(NAME) "\n"
         "deferred_rule" HOTROWS_DEFERRED_RULES(NAME) "\n"
         "recurrent_kind" HOTROWS_RECURRENT_KINDS(NAME) "\n"
         "target_activation" HOTROWS_TARGET_ACTIVATIONS(NAME) "\n"
         "key_admission" HOTROWS_KEY_ADMISSIONS(NAME) "\n"
         "key_eviction" HOTROWS_KEY_EVICTIONS(NAME) "\n"
         "key_settings" HOTROWS_KEY_SETTINGS(NAME) "\n"
         "key_totals" HOTROWS_KEY_TOTALS(NAME) "\n"
         "deferred_target" HOTROWS_DEFERRED_TARGET(TYPED_NAME) "\n"
         "route" HOTROWS_ROUTE(NAME) "\n"
         "slot_case" HOTROWS_SLOT_CASES(NAME) "\n"
         "text_problem" HOTROWS_TEXT_PROBLEMS(NAME) "\n";
}
