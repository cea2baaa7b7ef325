// Records by key: any int64 is a key, and a record has a place, a number from 0 up, while its key is in.
//
//   lines     64 B each: twelve tags (a byte of the hash), twelve places, and how many keys passed by
//             since the line was full; a key stands in the first line from its home on that had room
//   records   in segments of 128 Ki; they never move but in the first segment, which doubles
//   free      places below the highest one that are free: bits, and bits of words that have any
//
// The home of a key is the upper half of its hash, scaled to the number of lines, so that homes rise with
// hashes. At 82 % full, lines become a quarter more: with every key that comes one line of old ones is moved,
// in the order of homes, and its memory given back, all before old lines are more than nine tenths full. A key
// whose old home was moved is looked for in the new lines alone, any other in the old ones alone: there is no
// pause, and never a second probe. A line and a record are each a cache miss, and so is the line behind, where up
// to a tenth of the keys stand; `find_all` prefetches all of them some keys ahead: one by one, since the misses
// of a block would wait for one another.
#pragma once

#include <type_traits>

#include "memory.h"

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace hotrows {

// Numbers from 0 up that are in use; the lowest free one is given out first.
class Places {
 public:
  uint32_t take() {
    if (num_free_ == 0) return end_++;
    --num_free_;
    uint64_t place = 0;
    for (int level = kLevels - 1; level >= 0; --level) {
      place = place * 64 + static_cast<uint64_t>(__builtin_ctzll(levels_[level][place]));
    }
    uint64_t bit = place;
    for (auto& level : levels_) {
      level[bit / 64] &= ~(uint64_t{1} << bit % 64);
      if (level[bit / 64] != 0) break;
      bit /= 64;
    }
    CHECK(place < end_, place, end_);
    return static_cast<uint32_t>(place);
  }

  void give_back(uint32_t place) {
    CHECK(place < end_ && !is_free(place), place, end_);
    ++num_free_;
    uint64_t bit = place;
    for (auto& level : levels_) {
      if (level.size() <= bit / 64) level.resize(bit / 64 + 1);
      const uint64_t word = level[bit / 64];
      level[bit / 64] = word | uint64_t{1} << bit % 64;
      if (word != 0) break;
      bit /= 64;
    }
  }

  // Takes a number above all that were in use; those between become free.
  void take_at(uint32_t place) {
    CHECK(place >= end_, place, end_);
    while (end_ < place) give_back(end_++);
    end_ = place + 1;
  }

  bool is_free(uint32_t place) const {
    return num_free_ != 0 && place / 64 < levels_[0].size() && levels_[0][place / 64] >> place % 64 & 1;
  }

  uint32_t end() const { return end_; }  // no number above is in use
  uint32_t size() const { return end_ - num_free_; }

  // As many bits are set as numbers are free, and a bit above them where one of its 64 is.
  void check_all() const {
    for (int level = 0; level < kLevels; ++level) {
      uint64_t set = 0;
      for (size_t i = 0; i < levels_[level].size(); ++i) {
        const uint64_t word = levels_[level][i];
        set += static_cast<uint64_t>(__builtin_popcountll(word));
        if (level + 1 == kLevels) continue;
        const auto& above = levels_[level + 1];
        CHECK((word != 0) == (i / 64 < above.size() && above[i / 64] >> i % 64 & 1), level, i, word);
      }
      CHECK(level > 0 || set == num_free_, set, num_free_);
    }
  }

  int64_t num_bytes() const {
    size_t words = 0;
    for (const auto& level : levels_) words += level.capacity();
    return static_cast<int64_t>(words * sizeof(uint64_t));
  }

 private:
  static constexpr int kLevels = 6;  // 64^6 is more than 2^32

  std::vector<uint64_t> levels_[kLevels];  // a bit is set where the number, or some of its 64, is free
  uint32_t end_ = 0, num_free_ = 0;
};

template <class Record>
class Segments {
 public:
  Record& operator[](uint32_t place) const {
    CHECK(place < capacity_, place, capacity_);
    return starts_[place >> kBits][place & (kSize - 1)];
  }

  // Makes records up to `end` that are zero.
  void reserve(uint32_t end) {
    while (capacity_ < end) {
      if (capacity_ < kSize) {
        const uint32_t before = capacity_;
        capacity_ = std::max<uint32_t>(capacity_ * 2, 64);
        Zeroed larger = block(capacity_);
        if (before) std::memcpy(larger.as<Record>(), starts_[0], before * sizeof(Record));
        segments_.resize(1);
        segments_[0] = std::move(larger);
      } else {
        segments_.push_back(block(kSize));
        capacity_ += kSize;
      }
      CHECK(capacity_ <= kSize || capacity_ == segments_.size() * kSize, capacity_, segments_.size());
      starts_.resize(segments_.size());
      starts_.back() = segments_.back().template as<Record>();
    }
  }

  int64_t num_bytes() const { return static_cast<int64_t>(capacity_ * sizeof(Record)); }

 private:
  static constexpr int kBits = 17;
  static constexpr uint32_t kSize = 1 << kBits;
  static_assert(std::is_trivially_copyable<Record>::value, "records are made by zeroing memory, and copied as bytes");

  static Zeroed block(uint32_t num) { return Zeroed(static_cast<int64_t>(num * sizeof(Record))); }

  std::vector<Zeroed> segments_;
  std::vector<Record*> starts_;
  uint32_t capacity_ = 0;
};

struct Line {
  static constexpr int kSlots = 12;
  uint8_t tags[kSlots];  // 0: the slot is free
  uint32_t passed;       // keys that stand in a line behind, since they found no room up to this one
  uint32_t places[kSlots];

  // A bit for each slot with this tag.
  uint32_t matches(uint8_t tag) const {
    constexpr uint32_t kAll = (1 << kSlots) - 1;
#ifdef __SSE2__
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(tags));
    const __m128i same = _mm_cmpeq_epi8(bytes, _mm_set1_epi8(static_cast<char>(tag)));
    return static_cast<uint32_t>(_mm_movemask_epi8(same)) & kAll;
#else
    uint32_t bits = 0;
    for (int slot = 0; slot < kSlots; ++slot) bits |= static_cast<uint32_t>(tags[slot] == tag) << slot;
    return bits & kAll;
#endif
  }
};
static_assert(sizeof(Line) == 64, "a cache line");

// Homes, and spare lines behind the last one for keys that pass it.
struct Lines {
  Lines() = default;
  Lines(int64_t num_homes, int64_t num_spare)
      : memory((num_homes + num_spare) * static_cast<int64_t>(sizeof(Line))), homes(num_homes), spare(num_spare) {}

  Line& operator[](int64_t i) const {
    CHECK(i >= 0 && i < size(), i, homes, spare);
    return memory.as<Line>()[i];
  }
  int64_t size() const { return homes + spare; }
  int64_t home(uint64_t hash) const { return static_cast<int64_t>((hash >> 32) * static_cast<uint64_t>(homes) >> 32); }

  Zeroed memory;
  int64_t homes = 0, spare = 0;
};

// Record: has an int64_t key. most: keys that the lines never need to be made for more of.
template <class Record>
class KeyedRecords {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  explicit KeyedRecords(int64_t most = INT32_MAX) : most_(most), lines_(kFirst, kSpare) {}

  Record& operator[](uint32_t place) const { return records_[place]; }
  uint32_t size() const { return places_.size(); }
  uint32_t end() const { return places_.end(); }
  bool is_free(uint32_t place) const { return places_.is_free(place); }

  // The place of a key, or kNone.
  uint32_t find(int64_t key) const { return find(mix64(static_cast<uint64_t>(key)), key); }

  // Calls visit(i, place) for each key in order; kNone where it is not in. `visit` may insert keys for which
  // room was reserved.
  template <class Visit>
  void find_all(const int64_t* keys, int64_t n, Visit visit) const {
    uint64_t hashes[kRing];
    uint32_t first[kRing];
    const uint32_t size_before = size();
    for (int64_t i = 0; i < n + kFar; ++i) {
      if (i < n) {
        hashes[ring(i)] = mix64(static_cast<uint64_t>(keys[i]));
        prefetch_line(hashes[ring(i)]);
      }
      const int64_t near = i - kNear;
      if (near >= 0 && near < n) first[ring(near)] = at_home(hashes[ring(near)]);
      const int64_t mid = i - kMid;
      if (mid >= 0 && mid < n && first[ring(mid)] == kPassed) {
        first[ring(mid)] = first_match(hashes[ring(mid)]);
        if (first[ring(mid)] != kNone) prefetch_for_write(&records_[first[ring(mid)]]);
      }
      const int64_t now = i - kFar;
      if (now < 0) continue;
      uint32_t place = first[ring(now)];
      const bool is_sure = place == kNone ? size() == size_before : records_[place].key == keys[now];
      if (!is_sure) place = find(hashes[ring(now)], keys[now]);
      CHECK(place == kNone || records_[place].key == keys[now], keys[now], place);
      visit(now, place);
    }
  }

  // Makes room for keys to come, and moves lines in proportion to their number.
  void reserve(int64_t more) {
    CHECK(more >= 0 && size() + more < kPassed, more, size());
    records_.reserve(static_cast<uint32_t>(std::max<int64_t>(end(), size() + more)));
    while (size() + more > room(lines_)) {
      if (old_.homes) move(old_.homes);
      const int64_t factor = lines_.homes < kDoubles ? 8 : 5;
      const int64_t wanted = std::max(lines_.homes * factor / 4, homes_for(std::min(size() + more, most_)));
      grow(std::max(std::min(wanted, homes_for(most_)), homes_for(size() + more)), lines_.spare);
    }
    if (old_.homes) move(more + 1);
    CHECK(size() + more <= room(lines_), size(), more, lines_.homes);
    if (kChecks && is_look_due(lines_.homes * Line::kSlots + end())) check_all();
  }

  // Puts in a key that is not in; `reserve` has made room.
  uint32_t insert(int64_t key) {
    CHECK(find(key) == kNone, key);
    const uint32_t place = places_.take();
    put(key, place);
    return place;
  }

  // Puts in a key at a place above all others.
  void insert_at(int64_t key, uint32_t place) {
    places_.take_at(place);
    records_.reserve(place + 1);
    put(key, place);
  }

  void prefetch(int64_t key) const { prefetch_line(mix64(static_cast<uint64_t>(key))); }

  void erase(uint32_t place) {
    CHECK(place < end() && !is_free(place), place, end());
    const uint64_t hash = mix64(static_cast<uint64_t>(records_[place].key));
    take_out(lines_for(hash), hash, place);
    places_.give_back(place);
  }

  int64_t num_bytes() const {
    const int64_t moved = moved_ * static_cast<int64_t>(sizeof(Line));  // given back, but for a page or so
    const int64_t lines = lines_.memory.size();  // of which those behind the keys that moved are not yet in memory
    const int64_t written = old_.homes ? lines / old_.homes * moved_ : lines;
    return written + old_.memory.size() - moved + records_.num_bytes() + places_.num_bytes();
  }

 private:
  static constexpr int64_t kFirst = 4, kSpare = 8, kDoubles = 4096;
  static constexpr int64_t kRing = 128, kFar = 64, kMid = 44, kNear = 24;
  static constexpr uint32_t kPassed = kNone - 1;
  static constexpr int64_t kAhead = 4;  // lines, whose records are prefetched
  static constexpr int64_t kGiveBack = 1 << 15;  // lines, of 2 MiB together

  static uint64_t ring(int64_t i) { return static_cast<uint64_t>(i) % kRing; }
  static uint8_t tag_of(uint64_t hash) { return std::max<uint8_t>(static_cast<uint8_t>(hash), 1); }
  static int64_t room(const Lines& lines) { return lines.homes * Line::kSlots * 82 / 100; }
  static int64_t homes_for(int64_t keys) { return keys * 100 / (Line::kSlots * 82) + 1; }

  const Lines& lines_for(uint64_t hash) const {
    return old_.homes != 0 && old_.home(hash) >= moved_ ? old_ : lines_;
  }

  void prefetch_line(uint64_t hash) const {
    const Lines& lines = lines_for(hash);
    hotrows::prefetch(&lines[lines.home(hash)]);
  }

  // The place of the first key at home with the hash's tag, whose record is prefetched; or kPassed, and the next
  // line is prefetched; or kNone.
  uint32_t at_home(uint64_t hash) const {
    const Lines& lines = lines_for(hash);
    const Line& line = lines[lines.home(hash)];
    if (const uint32_t bits = line.matches(tag_of(hash))) {
      const uint32_t place = line.places[__builtin_ctz(bits)];
      prefetch_for_write(&records_[place]);
      return place;
    }
    if (line.passed == 0) return kNone;
    hotrows::prefetch(&line + 1);
    return kPassed;
  }

  // The place of the first key with the hash's tag: of this key nearly always, where it is in.
  uint32_t first_match(uint64_t hash) const {
    const Lines& lines = lines_for(hash);
    for (int64_t i = lines.home(hash);; ++i) {
      const uint32_t bits = lines[i].matches(tag_of(hash));
      if (bits) return lines[i].places[__builtin_ctz(bits)];
      if (lines[i].passed == 0) return kNone;
    }
  }

  uint32_t find(uint64_t hash, int64_t key) const {
    const Lines& lines = lines_for(hash);
    for (int64_t i = lines.home(hash);; ++i) {
      for (uint32_t bits = lines[i].matches(tag_of(hash)); bits; bits &= bits - 1) {
        const uint32_t place = lines[i].places[__builtin_ctz(bits)];
        if (records_[place].key == key) return place;
      }
      if (lines[i].passed == 0) return kNone;
    }
  }

  void put(int64_t key, uint32_t place) {
    CHECK(place < end() && !is_free(place), place, end());
    records_[place] = Record();
    records_[place].key = key;
    const uint64_t hash = mix64(static_cast<uint64_t>(key));
    while (!put(lines_for(hash), hash, place)) {  // past the last line: keys that lie together on purpose
      if (old_.homes) move(old_.homes);
      grow(lines_.homes, lines_.spare * 2);
      move(old_.homes);
    }
  }

  static bool put(const Lines& lines, uint64_t hash, uint32_t place) {
    const int64_t home = lines.home(hash);
    int64_t i = home;
    while (i < lines.size() && lines[i].matches(0) == 0) ++i;
    if (i == lines.size()) return false;
    CHECK(home < lines.homes, home, lines.homes);
    for (int64_t full = home; full < i; ++full) ++lines[full].passed;
    const int slot = __builtin_ctz(lines[i].matches(0));
    lines[i].tags[slot] = tag_of(hash);
    lines[i].places[slot] = place;
    return true;
  }

  static void take_out(const Lines& lines, uint64_t hash, uint32_t place) {
    for (int64_t i = lines.home(hash);; ++i) {
      for (uint32_t bits = lines[i].matches(tag_of(hash)); bits; bits &= bits - 1) {
        const int slot = __builtin_ctz(bits);
        if (lines[i].places[slot] != place) continue;
        lines[i].tags[slot] = 0;
        return;
      }
      CHECK(lines[i].passed > 0, i, place);  // or it stands nowhere
      --lines[i].passed;
    }
  }

  void grow(int64_t homes, int64_t spare) {
    CHECK(old_.homes == 0 && homes >= lines_.homes, old_.homes, homes, lines_.homes);
    old_ = std::move(lines_);
    lines_ = Lines(homes, spare);
    moved_ = 0;
  }

  // Moves the keys of some more homes to the new lines.
  void move(int64_t count) {
    const int64_t end = std::min(moved_ + count, old_.homes);
    for (int64_t i = moved_; i < std::min(moved_ + kAhead, end); ++i) prefetch_records(i);
    for (; moved_ < end; ++moved_) {
      if (moved_ + kAhead < old_.homes) prefetch_records(moved_ + kAhead);
      move_home();
      if ((moved_ + 1) % kGiveBack == 0) {
        old_.memory.give_back((moved_ + 1 - kGiveBack) * static_cast<int64_t>(sizeof(Line)),
                              (moved_ + 1) * static_cast<int64_t>(sizeof(Line)));
      }
    }
    if (moved_ == old_.homes) {
      for (int64_t i = 0; kChecks && i < old_.spare; ++i) CHECK(old_[old_.homes + i].matches(0) == 0xFFF, i);
      old_ = Lines();
      moved_ = 0;
    }
  }

  void prefetch_records(int64_t i) const {
    for (uint32_t bits = ~old_[i].matches(0) & 0xFFF; bits; bits &= bits - 1) {
      hotrows::prefetch(&records_[old_[i].places[__builtin_ctz(bits)]]);
    }
  }

  // Keys of earlier homes have all moved, so that those that passed this line are of its own.
  void move_home() {
    for (int64_t i = moved_;; ++i) {
      for (uint32_t bits = ~old_[i].matches(0) & 0xFFF; bits; bits &= bits - 1) {
        const uint32_t place = old_[i].places[__builtin_ctz(bits)];
        const uint64_t hash = mix64(static_cast<uint64_t>(records_[place].key));
        CHECK(old_.home(hash) >= moved_ && old_.home(hash) <= i, old_.home(hash), moved_, i);
        if (old_.home(hash) != moved_) continue;
        old_[i].tags[__builtin_ctz(bits)] = 0;
        for (int64_t full = moved_; full < i; ++full) --old_[full].passed;
        while (!put(lines_, hash, place)) spread(lines_.spare * 2);
      }
      if (old_[moved_].passed == 0) {
        CHECK(old_[moved_].matches(0) == 0xFFF, moved_);
        return;
      }
    }
  }

  // Each key is found where it stands, each line counts the keys that passed it, and no place stands twice.
  void check_all() const {
    places_.check_all();
    CHECK(old_.homes == 0 ? moved_ == 0 : moved_ < old_.homes, moved_, old_.homes);
    std::vector<bool> seen(end());
    uint32_t count = 0;
    for (const Lines* lines : {&lines_, &old_}) {
      std::vector<uint32_t> passed(static_cast<size_t>(lines->size()));
      const int64_t first = lines == &old_ ? moved_ : 0;  // lines before it were given back
      for (int64_t i = first; i < lines->size(); ++i) {
        const Line& line = (*lines)[i];
        for (uint32_t bits = ~line.matches(0) & 0xFFF; bits; bits &= bits - 1) {
          const uint32_t place = line.places[__builtin_ctz(bits)];
          CHECK(place < end() && !is_free(place) && !seen[place], i, place);
          const uint64_t hash = mix64(static_cast<uint64_t>(records_[place].key));
          CHECK(&lines_for(hash) == lines && line.tags[__builtin_ctz(bits)] == tag_of(hash), i, place);
          CHECK(find(hash, records_[place].key) == place, i, place);
          for (int64_t full = lines->home(hash); full < i; ++full) ++passed[static_cast<size_t>(full)];
          seen[place] = true, ++count;
        }
      }
      for (int64_t i = first; i < lines->size(); ++i)
        CHECK((*lines)[i].passed == passed[static_cast<size_t>(i)], i, (*lines)[i].passed);
    }
    CHECK(count == size(), count, size());
  }

  // Gives the new lines more spare ones.
  void spread(int64_t spare) {
    CHECK(spare > lines_.spare, spare, lines_.spare);
    Lines wider(lines_.homes, spare);
    std::memcpy(wider.memory.template as<char>(), lines_.memory.template as<char>(),
                static_cast<size_t>(lines_.memory.size()));
    lines_ = std::move(wider);
  }

  int64_t most_;
  Lines lines_, old_;
  int64_t moved_ = 0;  // homes of old lines whose keys are in the new ones
  Segments<Record> records_;
  Places places_;
};

}  // namespace hotrows
