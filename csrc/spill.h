// Files that sorting spills to: written and read in large pieces, and merged where each is sorted.
//
// A failure is thrown as a FileError and becomes a return value at the edge of the core. A run file
// holds counted values in the order of (hash, length, bytes):
//
//   byte 0   magic     "HOTRUNS\n"
//        8   values    uint64
//       16   size      uint64, bytes after these 32
//       24   checksum  uint64: h = mix64(h ^ word) over the words after these 32, from h = 0
//       32   values    hash uint64, count int64, length uint32, bytes, zeros up to a multiple of 8
//
// A negative count says that the value is known already, and has the rank -1 - count.
#pragma once

#include "value.h"

#include <cerrno>
#include <memory>
#include <string>

#include <fcntl.h>
#include <unistd.h>

namespace hotrows {

constexpr int kDamaged = 100000;  // no errno says it

struct FileError {
  int error;  // an errno, or kDamaged
  std::string path;
};

inline int64_t padded(int64_t size) { return (size + 7) / 8 * 8; }

class File {
 public:
  File(const std::string& path, int flags)
      : path_(path), descriptor_(::open(path.c_str(), flags | O_CLOEXEC, 0644)) {
    if (descriptor_ < 0) fail(errno);
  }
  ~File() { ::close(descriptor_); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  static std::shared_ptr<File> open(const std::string& path) {
    return std::make_shared<File>(path, O_RDONLY);
  }

  static std::shared_ptr<File> create(const std::string& path) {
    return std::make_shared<File>(path, O_RDWR | O_CREAT | O_TRUNC);
  }

  // A file without a name: it goes when it is closed, however that comes about.
  static std::shared_ptr<File> scratch(const std::string& path) {
    const std::shared_ptr<File> file = create(path);
    ::unlink(path.c_str());
    return file;
  }

  void write(const char* data, int64_t size, int64_t offset) {
    while (size > 0) {
      const ssize_t done = ::pwrite(descriptor_, data, static_cast<size_t>(size), offset);
      if (done < 0 && errno == EINTR) continue;
      if (done <= 0) fail(done < 0 ? errno : ENOSPC);
      data += done, size -= done, offset += done;
    }
  }

  void read(char* data, int64_t size, int64_t offset) {
    while (size > 0) {
      const ssize_t done = ::pread(descriptor_, data, static_cast<size_t>(size), offset);
      if (done < 0 && errno == EINTR) continue;
      if (done <= 0) fail(done < 0 ? errno : kDamaged);
      data += done, size -= done, offset += done;
    }
  }

  // Begins to read what is wanted soon, and does not wait for it.
  void read_ahead([[maybe_unused]] int64_t size, [[maybe_unused]] int64_t offset) {
#ifdef POSIX_FADV_WILLNEED  // macOS has none
    ::posix_fadvise(descriptor_, offset, size, POSIX_FADV_WILLNEED);
#endif
  }

  int64_t size() const {
    const off_t end = ::lseek(descriptor_, 0, SEEK_END);  // no fstat: glibc 2.33 gave it a new symbol
    if (end < 0) fail(errno);
    return end;
  }

  [[noreturn]] void fail(int error) const { throw FileError{error, path_}; }

 private:
  std::string path_;
  int descriptor_;
};

using FilePtr = std::shared_ptr<File>;

// Appends to a file.
class Writer {
 public:
  Writer(FilePtr file, int64_t buffer, int64_t offset = 0)
      : file_(std::move(file)), buffer_(buffer), written_(offset) {}

  // Space for `size` bytes, which are written once the caller has filled them.
  char* room(int64_t size) {
    if (used_ + size > static_cast<int64_t>(buffer_.size())) flush();
    if (size > static_cast<int64_t>(buffer_.size())) buffer_.resize(size);
    CHECK(size >= 0 && used_ + size <= static_cast<int64_t>(buffer_.size()), size, used_, buffer_.size());
    used_ += size;
    return buffer_.data() + used_ - size;
  }

  template <typename T>
  void put(const T& value) { std::memcpy(room(sizeof(T)), &value, sizeof(T)); }

  void put(Field bytes) {
    if (bytes.length > 0) std::memcpy(room(bytes.length), bytes.data, bytes.length);
  }

  void flush() {
    file_->write(buffer_.data(), used_, written_);
    written_ += used_;
    used_ = 0;
  }

  int64_t offset() const { return written_ + used_; }
  const FilePtr& file() const { return file_; }

 private:
  FilePtr file_;
  std::vector<char> buffer_;
  int64_t written_, used_ = 0;
};

// Reads the bytes begin .. end - 1 of a file, one after the other.
class Reader {
 public:
  Reader(FilePtr file, int64_t begin, int64_t end, int64_t buffer)
      : file_(std::move(file)), next_(begin), end_(end), buffer_(buffer + kSpare) {
    CHECK(0 <= begin && begin <= end, begin, end);
  }

  bool at_end() const { return left() == 0; }

  // The next `size` bytes, which stay until the next call; eight more may be read behind them.
  const char* peek(int64_t size) {
    if (size > left()) file_->fail(kDamaged);
    if (size > filled_ - used_) refill(size);
    CHECK(used_ + size <= filled_ && filled_ + kSpare <= static_cast<int64_t>(buffer_.size()), used_, size, filled_);
    return buffer_.data() + used_;
  }

  void skip(int64_t size) {
    CHECK(size >= 0 && used_ + size <= filled_, size, used_, filled_);  // it was seen
    used_ += size;
  }
  int64_t left() const { return end_ - next_ + filled_ - used_; }
  const FilePtr& file() const { return file_; }

 private:
  static constexpr int64_t kSpare = 8;

  void refill(int64_t size) {
    std::memmove(buffer_.data(), buffer_.data() + used_, filled_ - used_);
    filled_ -= used_, used_ = 0;
    if (size + kSpare > static_cast<int64_t>(buffer_.size())) buffer_.resize(size + kSpare);
    const int64_t room = static_cast<int64_t>(buffer_.size()) - kSpare - filled_;
    const int64_t more = std::min(room, end_ - next_);
    file_->read(buffer_.data() + filled_, more, next_);
    next_ += more, filled_ += more;
    CHECK(next_ <= end_ && filled_ >= size, next_, end_, filled_, size);
  }

  FilePtr file_;
  int64_t next_, end_;
  std::vector<char> buffer_;
  int64_t used_ = 0, filled_ = 0;
};

// Visits what several sorted sources hold, in order. A source has `current` and `next()`, which is
// false at its end.
template <typename Source, typename Before, typename Visit>
void merge_sorted(std::vector<Source>& sources, Before before, Visit visit) {
  std::vector<Source*> heap;
  for (Source& source : sources) {
    if (source.next()) heap.push_back(&source);
  }
  const auto later = [&](Source* a, Source* b) { return before(b->current, a->current); };
  std::make_heap(heap.begin(), heap.end(), later);
  CHECK(heap.size() <= sources.size(), heap.size(), sources.size());
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    visit(heap.back()->current);
    if (heap.back()->next()) {
      std::push_heap(heap.begin(), heap.end(), later);
    } else {
      heap.pop_back();
    }
  }
}

// ---- runs of counted values

struct Counted {
  uint64_t hash;
  int64_t count;
  Field value;
};

inline bool before(const Counted& a, const Counted& b) {
  if (a.hash != b.hash) return a.hash < b.hash;
  if (a.value.length != b.value.length) return a.value.length < b.value.length;
  return std::memcmp(a.value.data, b.value.data, a.value.length) < 0;
}

struct RunHead {
  char magic[8];
  uint64_t values, size, checksum;
};

constexpr char kRunMagic[9] = "HOTRUNS\n";
constexpr int64_t kCountedHead = 20;  // hash, count and length

inline uint64_t chained(uint64_t checksum, const char* data, int64_t size) {
  CHECK(size % 8 == 0, size);
  for (int64_t i = 0; i < size; i += 8) {
    uint64_t word;
    std::memcpy(&word, data + i, 8);
    checksum = mix64(checksum ^ word);
  }
  return checksum;
}

class RunWriter {
 public:
  RunWriter(FilePtr file, int64_t buffer) : to_(std::move(file), buffer, sizeof(RunHead)) {}

  void put(const Counted& counted) {
    CHECK(counted.count != 0, counted.hash);
    const int64_t used = kCountedHead + counted.value.length, size = padded(used);
    char* const p = to_.room(size);
    std::memcpy(p, &counted.hash, 8);
    std::memcpy(p + 8, &counted.count, 8);
    std::memcpy(p + 16, &counted.value.length, 4);
    std::memcpy(p + kCountedHead, counted.value.data, counted.value.length);
    std::memset(p + used, 0, size - used);
    head_.checksum = chained(head_.checksum, p, size);
    ++head_.values;
  }

  // The head comes last: a run that was cut off has none.
  void close() {
    to_.flush();
    std::memcpy(head_.magic, kRunMagic, 8);
    head_.size = to_.offset() - sizeof(RunHead);
    CHECK(head_.size % 8 == 0 && head_.size >= head_.values * padded(kCountedHead + 1), head_.size, head_.values);
    to_.file()->write(reinterpret_cast<const char*>(&head_), sizeof(RunHead), 0);
  }

 private:
  Writer to_;
  RunHead head_{};
};

class RunReader {
 public:
  RunReader(const FilePtr& file, int64_t buffer)
      : head_(head_of(*file)), from_(file, sizeof(RunHead), sizeof(RunHead) + head_.size, buffer) {}

  Counted current{};

  bool next() {
    if (from_.at_end()) {
      if (checksum_ != head_.checksum || seen_ != head_.values) from_.file()->fail(kDamaged);
      return false;
    }
    const char* p = from_.peek(kCountedHead);
    std::memcpy(&current.value.length, p + 16, 4);
    const int64_t size = padded(kCountedHead + current.value.length);
    p = from_.peek(size);
    std::memcpy(&current.hash, p, 8);
    std::memcpy(&current.count, p + 8, 8);
    current.value.data = p + kCountedHead;
    checksum_ = chained(checksum_, p, size);
    ++seen_;
    from_.skip(size);
    return true;
  }

 private:
  static RunHead head_of(File& file) {
    RunHead head;
    file.read(reinterpret_cast<char*>(&head), sizeof head, 0);
    const bool whole = std::memcmp(head.magic, kRunMagic, 8) == 0 &&
                       head.size == static_cast<uint64_t>(file.size()) - sizeof head;
    if (!whole) file.fail(kDamaged);
    return head;
  }

  RunHead head_;
  Reader from_;
  uint64_t checksum_ = 0, seen_ = 0;
};

}  // namespace hotrows
