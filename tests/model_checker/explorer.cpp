// Explores every state that a case of the model can reach, breadth first, so that the first fault found has
// the shortest way to it; and walks at random, to be replayed by the real code. Called from explorer.py.
#include <algorithm>
#include <memory>
#include <vector>

#include "model.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using model::Event;
using model::State;

// The distinct states met, in the order of meeting them. Whole states are compared, not hashes alone.
class States {
 public:
  explicit States(size_t size) : size_(size), table_(1u << 12, kNone) {}

  uint32_t count() const { return count_; }

  State at(uint32_t i) const {
    State s{};
    std::memcpy(&s, bytes(i), size_);
    return s;
  }

  // Adds a state, unless it was met before; returns whether it was added.
  bool add(const State& s) {
    if (count_ * 2 >= table_.size()) grow();
    const uint64_t hash = hash_of(reinterpret_cast<const uint8_t*>(&s));
    for (size_t p = hash & (table_.size() - 1);; p = (p + 1) & (table_.size() - 1)) {
      if (table_[p] == kNone) {
        table_[p] = count_;
        break;
      }
      if (!std::memcmp(bytes(table_[p]), &s, size_)) return false;
    }
    if (count_ % kBlock == 0) blocks_.emplace_back(new uint8_t[kBlock * size_]);
    std::memcpy(bytes(count_++), &s, size_);
    return true;
  }

 private:
  static constexpr uint32_t kNone = UINT32_MAX, kBlock = 1u << 12;

  uint8_t* bytes(uint32_t i) const { return blocks_[i / kBlock].get() + (i % kBlock) * size_; }

  uint64_t hash_of(const uint8_t* bytes) const {
    uint64_t hash = 0x9e3779b97f4a7c15;
    size_t i = 0;
    for (; i + 8 <= size_; i += 8) {
      uint64_t word;
      std::memcpy(&word, bytes + i, 8);
      hash = (hash ^ word) * 0xff51afd7ed558ccd;
      hash ^= hash >> 32;
    }
    for (; i < size_; ++i) hash = (hash ^ bytes[i]) * 0x100000001b3;
    return hash ^ hash >> 29;
  }

  void grow() {
    std::vector<uint32_t> wider(table_.size() * 4, kNone);
    for (uint32_t i = 0; i < count_; ++i) {
      size_t p = hash_of(bytes(i)) & (wider.size() - 1);
      while (wider[p] != kNone) p = (p + 1) & (wider.size() - 1);
      wider[p] = i;
    }
    table_.swap(wider);
  }

  const size_t size_;
  uint32_t count_ = 0;
  std::vector<uint32_t> table_;
  std::vector<std::unique_ptr<uint8_t[]>> blocks_;
};

struct Came {
  uint32_t from;
  Event by;
};

constexpr bool is_progress(Event event) { return event >> 7 != model::kCrash; }

}  // namespace

struct Result {
  uint64_t states, transitions, ends;
  int32_t complete, depth, length;  // length: of the trace
  model::Violation violation;
  Event trace[512];
};

// Explores a case until a fault, or until `most` states are met.
EXPORT void hotrows_explore(const model::Case* c, uint64_t most, Result* result) {
  model::Model model(*c);
  States states(model.size());
  std::vector<Came> came;
  *result = Result{};
  auto add = [&](const State& s, uint32_t from, Event by) {
    if (states.add(s)) came.push_back({from, by});
  };
  auto trace_to = [&](uint32_t i) {
    int length = 0;
    for (; i != 0; i = came[i].from)
      if (length < 512) result->trace[length++] = came[i].by;
    std::reverse(result->trace, result->trace + length);
    result->length = length;
  };
  add(model.initial(), 0, 0);
  uint32_t level_ends = 1, i = 0;
  for (; i < states.count() && states.count() < most && !model.violation.fault; ++i) {
    if (i == level_ends) {
      ++result->depth;
      level_ends = states.count();
    }
    const State s = states.at(i);
    const bool is_final = model.is_final(s);
    int progress = 0;
    Event faulty = 0;
    model.successors(s, [&](Event event, const State& t) {
      ++result->transitions;
      progress += is_progress(event);
      if (model.violation.fault && !faulty) faulty = event;
      if (!model.violation.fault) add(t, i, event);
    });
    if (is_final) {
      ++result->ends;
      if (!model.violation.fault) model.check_end(s);
    } else if (!progress && !model.violation.fault) {
      model.violation.fault = model::kDeadlock;
    }
    if (model.violation.fault) {
      trace_to(i);
      if (faulty && result->length < 512) result->trace[result->length++] = faulty;
    }
  }
  result->states = states.count();
  result->complete = i == states.count();
  result->violation = model.violation;
}

// Walks from the first state to a final one, and notes the events and, before each, which stages may begin:
// bit p * 5 + stage. weights: of the kinds of events, how likely they are; returns the number of events, -1
// where there are more than `most`.
EXPORT int32_t hotrows_walk(const model::Case* c, uint64_t seed, const uint8_t* weights, int32_t most,
                            Event* events, uint16_t* may_begin) {
  model::Model model(*c);
  State s = model.initial();
  uint64_t random = seed * 2 + 1;
  for (int length = 0;; ++length) {
    std::vector<std::pair<Event, State>> next;
    uint64_t total = 0;
    model.successors(s, [&](Event event, const State& t) {
      next.emplace_back(event, t);
      total += weights[event >> 7];
    });
    if (model.violation.fault || (total == 0 && !model.is_final(s))) return -1;
    if (total == 0) return length;
    if (length == most) return -1;
    random = random * 6364136223846793005u + 1442695040888963407u;
    uint64_t chosen = (random >> 33) % total, k = 0;
    while (chosen >= weights[next[k].first >> 7]) chosen -= weights[next[k++].first >> 7];
    may_begin[length] = 0;
    for (int p = 0; p < c->ranks; ++p)
      for (int stage = 0; stage < model::kStages; ++stage)
        may_begin[length] |= model.may_begin(s, p, stage) << (p * model::kStages + stage);
    events[length] = next[k].first;
    s = next[k].second;
  }
}

// By name: the rules (0), the events (1); and the bytes of a case (2) and of a result (3), as text.
EXPORT const char* hotrows_model_names(int32_t what) {
  return what == 0 ? model::kRuleNames : model::kEventNames;
}

EXPORT int32_t hotrows_model_size(int32_t what) {
  return static_cast<int32_t>(what == 0 ? sizeof(model::Case) : sizeof(Result));
}
