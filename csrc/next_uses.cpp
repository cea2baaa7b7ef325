// Next uses: how many batches later each row that a batch uses is used again, of a range of batches, found by two
// distributions through files.
//
//   add      the rows of batch after batch    -> uses, by range of rows
//   finish   range of rows by range of rows:  of each use the next one    -> pairs, by range of batches
//   read     range of batches by range of batches, as they come:          distances, in the order of their rows
//
// Files have no name, so none is left behind. A failure is a negative errno.
#include <limits>

#include "spill.h"

namespace hotrows {
namespace {

constexpr int kParts = 256, kBatchBits = 16, kIndexBits = 24, kRowBits = 64 - kBatchBits - kIndexBits;
constexpr int64_t kGroups = 64;           // ranges of batches
constexpr int64_t kMostBatches = 65000;   // so that a batch, and a distance, fit 16 bits
constexpr int64_t kPiece = 4096;          // entries written at once
constexpr size_t kAhead = 32;             // pieces that are read at a time: they lie far apart
constexpr int32_t kNever = INT32_MAX;

// Entries of several parts in one file, each part in pieces.
class Parts {
 public:
  Parts(const std::string& path, int64_t num) : file_(File::scratch(path)), parts_(num) {}

  void put(int64_t part, uint64_t entry) {
    Part& to = parts_[part];
    if (to.held.empty()) to.held.reserve(kPiece);
    to.held.push_back(entry);
    if (to.held.size() < kPiece) return;
    file_->write(reinterpret_cast<const char*>(to.held.data()), kPiece * 8, end_);
    to.pieces.push_back(end_);
    end_ += kPiece * 8;
    to.held.clear();
  }

  // In the order in which they were put.
  template <class Visit>
  void each(int64_t part, Visit visit) {
    std::vector<uint64_t> piece(kPiece);
    const std::vector<int64_t>& pieces = parts_[part].pieces;
    for (size_t i = 0, ahead = 0; i < pieces.size(); ++i) {
      for (; ahead < std::min(i + kAhead, pieces.size()); ++ahead) file_->read_ahead(kPiece * 8, pieces[ahead]);
      file_->read(reinterpret_cast<char*>(piece.data()), kPiece * 8, pieces[i]);
      for (const uint64_t entry : piece) visit(entry);
    }
    for (const uint64_t entry : parts_[part].held) visit(entry);
  }

  int64_t bytes() const { return end_; }

 private:
  struct Part {
    std::vector<uint64_t> held;
    std::vector<int64_t> pieces;
  };
  FilePtr file_;
  std::vector<Part> parts_;
  int64_t end_ = 0;
};

class NextUses {
 public:
  NextUses(const std::string& path, int64_t num_rows)
      : path_(path), uses_(std::make_unique<Parts>(path + ".uses", kParts)), met_(size_t{1} << kMetBits) {
    while (num_rows > int64_t{kParts} << shift_) ++shift_;
    CHECK(shift_ <= kRowBits, num_rows);
  }

  // Rows with repeats, in any order. Returns how many there are.
  int64_t add(const int64_t* rows, int64_t n) {
    CHECK(batches() < kMostBatches && are_within(rows, n, 0, int64_t{kParts} << shift_), batches(), n);
    sort_distinct(rows, n);
    const uint64_t batch = static_cast<uint64_t>(batches());
    const uint64_t mask = (uint64_t{1} << shift_) - 1;
    for (size_t i = 0; i < rows_.size(); ++i) {
      uses_->put(rows_[i] >> shift_, (rows_[i] & mask) << (kBatchBits + kIndexBits) | batch << kIndexBits | i);
    }
    sizes_.push_back(static_cast<int64_t>(rows_.size()));
    return sizes_.back();
  }

  // first_uses: the batch that first uses each of these rows, ascending; -1: none.
  void finish(const int64_t* residents, int64_t n, int32_t* first_uses) {
    group_size_ = std::max((batches() + kGroups - 1) / kGroups, int64_t{1});
    pairs_ = std::make_unique<Parts>(path_ + ".pairs", kGroups);
    std::vector<uint64_t> last(size_t{1} << shift_);  // batch + 1 and index of a row's last use
    std::vector<int32_t> resident(size_t{1} << shift_);
    std::fill(first_uses, first_uses + n, -1);
    for (int64_t part = 0, r = 0; part < kParts; ++part) {
      std::fill(last.begin(), last.end(), 0);
      const int64_t begin = r;
      for (; r < n && residents[r] >> shift_ == part; ++r) resident[residents[r] - (part << shift_)] = r + 1;
      uses_->each(part, [&](uint64_t entry) {
        const uint64_t row = entry >> (kBatchBits + kIndexBits), batch = entry >> kIndexBits & kLow16;
        const uint64_t use = entry & ((uint64_t{1} << (kBatchBits + kIndexBits)) - 1);
        const uint64_t before = last[row];
        last[row] = use + (uint64_t{1} << kIndexBits);
        if (before) {
          const uint64_t earlier = (before >> kIndexBits) - 1;
          pairs_->put(earlier / group_size_, (batch - earlier) << (kBatchBits + kIndexBits) |
                                                 (before - (uint64_t{1} << kIndexBits)));
        } else if (resident[row]) {
          first_uses[resident[row] - 1] = static_cast<int32_t>(batch);
        }
      });
      for (int64_t i = begin; i < r; ++i) resident[residents[i] - (part << shift_)] = 0;
    }
    uses_.reset();
  }

  // next: the batches that use the rows of a batch next, in their order; kNever: none within the range. False where
  // the batch has another number of rows.
  bool read(int64_t batch, int64_t n, int32_t* next) {
    if (batch < 0 || batch >= batches() || sizes_[batch] != n) return false;
    const int64_t group = batch / group_size_, first = group * group_size_;
    if (group != group_) load(group);
    int64_t at = 0;
    for (int64_t b = first; b < batch; ++b) at += sizes_[b];
    for (int64_t i = 0; i < n; ++i) {
      const uint16_t distance = distances_[at + i];
      next[i] = distance ? static_cast<int32_t>(batch + distance) : kNever;
    }
    return true;
  }

  int64_t batches() const { return static_cast<int64_t>(sizes_.size()); }
  int64_t bytes() const { return (uses_ ? uses_->bytes() : 0) + (pairs_ ? pairs_->bytes() : 0); }

 private:
  static constexpr uint64_t kLow16 = (1 << kBatchBits) - 1;
  static constexpr int kMetBits = 14, kDigit = 11;

  void load(int64_t group) {
    const int64_t first = group * group_size_, end = std::min(first + group_size_, batches());
    std::vector<int64_t> starts(end - first + 1);
    for (int64_t b = first; b < end; ++b) starts[b - first + 1] = starts[b - first] + sizes_[b];
    distances_.assign(starts.back(), 0);
    pairs_->each(group, [&](uint64_t entry) {
      const int64_t batch = entry >> kIndexBits & kLow16, i = entry & ((uint64_t{1} << kIndexBits) - 1);
      CHECK(batch >= first && batch < end && i < sizes_[batch], batch, i);
      distances_[starts[batch - first] + i] = static_cast<uint16_t>(entry >> (kBatchBits + kIndexBits));
    });
    group_ = group;
  }

  // Most repeats are of few rows, which a small memory of the last ones met knows.
  void sort_distinct(const int64_t* rows, int64_t n) {
    rows_.clear();
    std::fill(met_.begin(), met_.end(), std::numeric_limits<uint32_t>::max());
    for (int64_t i = 0; i < n; ++i) {
      const uint32_t row = static_cast<uint32_t>(rows[i]);
      uint32_t& met = met_[row * kGolden >> (64 - kMetBits)];
      if (met == row && row != std::numeric_limits<uint32_t>::max()) continue;
      met = row;
      rows_.push_back(row);
    }
    spare_.resize(rows_.size());
    for (int digit = 0; digit * kDigit < shift_ + 8; ++digit) {
      int64_t starts[(1 << kDigit) + 1] = {};
      const auto of = [&](uint32_t row) { return row >> (digit * kDigit) & ((1 << kDigit) - 1); };
      for (const uint32_t row : rows_) ++starts[of(row) + 1];
      for (int d = 0; d < 1 << kDigit; ++d) starts[d + 1] += starts[d];
      for (const uint32_t row : rows_) spare_[starts[of(row)]++] = row;
      rows_.swap(spare_);
    }
    rows_.erase(std::unique(rows_.begin(), rows_.end()), rows_.end());
    CHECK(rises(rows_.data(), static_cast<int64_t>(rows_.size())) && rows_.size() < size_t{1} << kIndexBits);
  }

  const std::string path_;
  int shift_ = 0;
  std::unique_ptr<Parts> uses_, pairs_;
  std::vector<int64_t> sizes_;
  int64_t group_size_ = 1, group_ = -1;
  std::vector<uint16_t> distances_;  // of the group that is read
  std::vector<uint32_t> met_, rows_, spare_;
};

template <class Call>
int64_t guarded(Call call) {
  try {
    return call();
  } catch (const FileError& error) {
    return -error.error;
  } catch (const std::bad_alloc&) {
    return -ENOMEM;
  }
}

NextUses* uses_of(void* handle) { return static_cast<NextUses*>(handle); }

}  // namespace
}  // namespace hotrows

using namespace hotrows;

// path: of files that are made and have no name afterwards; num_rows: up to 2^32. Null where they cannot be made.
HOTROWS_API void* hotrows_next_uses_new(const char* path, int64_t num_rows) {
  void* handle = nullptr;
  guarded([&] {
    handle = new NextUses(path, num_rows);
    return 0;
  });
  return handle;
}

HOTROWS_API void hotrows_next_uses_free(void* handle) { delete uses_of(handle); }

HOTROWS_API int64_t hotrows_next_uses_add(void* handle, const int64_t* rows, int64_t n) {
  return guarded([&] { return uses_of(handle)->add(rows, n); });
}

HOTROWS_API int64_t hotrows_next_uses_finish(void* handle, const int64_t* residents, int64_t n, int32_t* first_uses) {
  return guarded([&] {
    uses_of(handle)->finish(residents, n, first_uses);
    return int64_t{0};
  });
}

// Returns 1, or 0 where the batch was added with another number of rows.
HOTROWS_API int64_t hotrows_next_uses_read(void* handle, int64_t batch, int64_t n, int32_t* next) {
  return guarded([&] { return int64_t{uses_of(handle)->read(batch, n, next)}; });
}

// Of files, at present.
HOTROWS_API int64_t hotrows_next_uses_bytes(void* handle) { return uses_of(handle)->bytes(); }
