// Rows, and samples of uneven length, in chunks of about equal work. The chunks follow from the shapes
// alone: what is summed by chunk, and then chunk after chunk, does not depend on the number of threads.
#pragma once

#include "core.h"

namespace hotrows {

// Into how many chunks M rows are cut; chunk c begins at row M * c / count.
inline int64_t chunks_of_rows(int64_t M) { return std::clamp<int64_t>(M / 512, 1, 32); }

// Samples, cut between each other.
struct Chunks {
  const int64_t* offsets;  // [B + 1]
  int64_t B;

  // Work of the samples before b: their positions, and one more for each sample.
  int64_t work(int64_t b) const { return offsets[b] + b; }
  int64_t count() const { return std::clamp<int64_t>(work(B) / 512, 1, 64); }
  int64_t first(int64_t c) const {  // the first sample of chunk c, B for c = count()
    CHECK(c >= 0 && c <= count(), c, count());
    const int64_t before = work(B) * c / count();
    int64_t low = 0, high = B;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (work(middle) < before)
        low = middle + 1;
      else
        high = middle;
    }
    CHECK(c == 0 ? low == 0 : c < count() || low == B, c, low, B);
    return low;
  }

  void check_all() const {
    CHECK(B >= 0 && offsets[0] == 0 && never_falls(offsets, B + 1), B, offsets[0], offsets[B]);
    for (int64_t c = 0; c < count(); ++c) CHECK(first(c) <= first(c + 1), c, first(c), first(c + 1));
  }
};

// Lists that samples share: those of request r, starts[r] .. starts[r + 1] - 1, have its list, elements
// offsets[r] .. offsets[r + 1] - 1; what is computed of all lists, sample after sample, begins for those of
// r at ends[r]. Every list has a sample. starts: null where it is one, and ends are the offsets.
struct SharedLists {
  const int64_t *ends, *offsets, *starts;
  int64_t R;

  int64_t size(int64_t r) const { return offsets[r + 1] - offsets[r]; }
  int64_t first(int64_t r) const { return starts ? starts[r] : r; }
  int64_t at(int64_t r, int64_t s) const { return ends[r] + (s - first(r)) * size(r); }
  void check(int64_t r) const {
    CHECK(size(r) >= 0 && first(r) < first(r + 1), r, size(r), first(r), first(r + 1));
    CHECK(at(r, first(r + 1)) == ends[r + 1], r, size(r), ends[r], ends[r + 1]);
  }
};

// Samples b .. b + count - 1 of request r.
struct SampleBlock {
  int64_t r, b, count;
};

// All samples with lists of `least` elements or more, at most `most` of a request together.
inline std::vector<SampleBlock> blocks_of(const SharedLists& lists, int64_t most, int64_t least = 0) {
  std::vector<SampleBlock> blocks;
  for (int64_t r = 0; r < lists.R; ++r) {
    lists.check(r);
    for (int64_t b = lists.first(r), end = lists.first(r + 1); lists.size(r) >= least && b < end; b += most)
      blocks.push_back({r, b, std::min(most, end - b)});
  }
  return blocks;
}

// Calls run(b) for every sample, chunks in parallel.
template <class Run>
void each_sample(const int64_t* offsets, int64_t B, Run run) {
  const Chunks chunks{offsets, B};
  if (kChecks) chunks.check_all();
#pragma omp parallel for schedule(dynamic)
  for (int64_t c = 0; c < chunks.count(); ++c)
    for (int64_t b = chunks.first(c); b < chunks.first(c + 1); ++b) run(b);
}

}  // namespace hotrows
