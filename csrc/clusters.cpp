// Clusters of samples that read equal rows; hotrows.data.stored.order has the rule. One thread: a loader
// runs beside training.
#include <array>

#include "core.h"

namespace hotrows {
namespace {

constexpr int64_t kTile = 256;  // samples whose places in `seen` are computed, and fetched, at once
constexpr int64_t kMostAtOnce = 255;  // what a byte counts to

// Bits to bytes: byte g of kSpread[m] is bit g of m.
constexpr std::array<uint64_t, 256> spread() {
  std::array<uint64_t, 256> bytes{};
  for (uint64_t m = 0; m < 256; ++m)
    for (int g = 0; g < 8; ++g) bytes[m] |= (m >> g & 1) << (8 * g);
  return bytes;
}
constexpr std::array<uint64_t, 256> kSpread = spread();

// A feature: ids of `width` bytes; starts: of the lists in them, or 0 where every sample has one id.
struct Column {
  int64_t ids, width, starts, salt;
};

// `seen` has kBytes bytes for each place, a bit for each cluster.
template <int64_t kBytes>
class Clusters {
 public:
  Clusters(int64_t num, int64_t bits, int64_t step, int64_t most, uint8_t* seen, int64_t* sizes)
      : num_(num), shift_(64 - bits), step_(step), most_(most), seen_(seen), sizes_(sizes) {
    CHECK(num > 0 && num <= 8 * kBytes && bits > 0 && bits < 64, num, bits);
    CHECK(are_within(sizes, num, 0, most + 1), num, most);
  }

  void add(const Column* columns, int64_t num_columns, int64_t num_samples, uint8_t* clusters) {
    for (int64_t b = 0; b < num_samples; b += kTile) {
      const int64_t n = std::min(kTile, num_samples - b);
      find_places(columns, num_columns, b, n);
      for (int64_t i = 0; i < n; ++i) clusters[b + i] = choose(i ? ends_[i - 1] : 0, ends_[i]);
    }
  }

 private:
  // Fills the places of samples b .. b + n - 1, sample after sample, and where each one's end.
  void find_places(const Column* columns, int64_t num_columns, int64_t b, int64_t n) {
    int64_t end = 0;
    for (int64_t i = 0; i < n; ++i) {
      ends_[i] = end;
      for (int64_t c = 0; c < num_columns; ++c) {
        const int64_t* const starts = reinterpret_cast<const int64_t*>(columns[c].starts);
        end += starts ? starts[b + i + 1] - starts[b + i] : 1;
      }
    }
    places_.resize(end);
    for (int64_t c = 0; c < num_columns; ++c) {
      switch (columns[c].width) {
        case 1: append<uint8_t>(columns[c], b, n); break;
        case 2: append<uint16_t>(columns[c], b, n); break;
        case 4: append<uint32_t>(columns[c], b, n); break;
        default: append<uint64_t>(columns[c], b, n);
      }
    }
    CHECK(ends_[n - 1] == end && never_falls(ends_, n), ends_[n - 1], end);  // each place was filled
  }

  template <class Id>
  void append(const Column& column, int64_t b, int64_t n) {
    const Id* const ids = reinterpret_cast<const Id*>(column.ids);
    const int64_t* const starts = reinterpret_cast<const int64_t*>(column.starts);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t end = starts ? starts[b + i + 1] : b + i + 1;
      for (int64_t k = starts ? starts[b + i] : b + i; k < end; ++k) {
        const uint64_t key = static_cast<uint64_t>(ids[k]) + static_cast<uint64_t>(column.salt);
        const int64_t place = static_cast<int64_t>(key * kGolden >> shift_) * kBytes;
        CHECK(ends_[i] < static_cast<int64_t>(places_.size()), i, ends_[i], places_.size());
        prefetch_for_write(seen_ + place);
        places_[ends_[i]++] = place;
      }
    }
  }

  // Puts the sample with these places into the cluster of the highest score.
  uint8_t choose(int64_t first, int64_t end) {
    int64_t overlaps[8 * kBytes] = {};
    for (int64_t from = first; from < end; from += kMostAtOnce) {
      uint64_t counts[kBytes] = {};
      for (int64_t n = from; n < std::min(from + kMostAtOnce, end); ++n)
        for (int64_t j = 0; j < kBytes; ++j) counts[j] += kSpread[seen_[places_[n] + j]];
      for (int64_t g = 0; g < 8 * kBytes; ++g) overlaps[g] += counts[g / 8] >> (8 * (g % 8)) & 255;
    }
    int64_t best = -1, best_score = 0;
    for (int64_t g = 0; g < num_; ++g) {
      const int64_t score = (overlaps[g] << 16) - sizes_[g] * step_;
      if (sizes_[g] < most_ && (best < 0 || score > best_score)) best = g, best_score = score;
    }
    CHECK(best >= 0 && sizes_[best] < most_, best, most_);  // there is room for all samples
    ++sizes_[best];
    for (int64_t n = first; n < end; ++n)
      seen_[places_[n] + best / 8] = static_cast<uint8_t>(seen_[places_[n] + best / 8] | 1 << best % 8);
    return static_cast<uint8_t>(best);
  }

  const int64_t num_, shift_, step_, most_;
  uint8_t* const seen_;
  int64_t* const sizes_;
  int64_t ends_[kTile];
  std::vector<int64_t> places_;
};

}  // namespace
}  // namespace hotrows

using namespace hotrows;

// clusters[i] = the cluster of sample i < num_samples. columns: [num_columns, 4], see Column; seen: 1 << bits
// places of num_bytes bytes each, 1, 2, 4 or 8; sizes: [num]. Both stay from one call to the next.
HOTROWS_API int64_t hotrows_clusters(const int64_t* columns, int64_t num_columns, int64_t num_samples, int64_t num,
                                     int64_t num_bytes, int64_t bits, int64_t step, int64_t most, uint8_t* seen,
                                     int64_t* sizes, uint8_t* clusters) {
  const auto* const features = reinterpret_cast<const Column*>(columns);
  const auto add = [&](auto into) { into.add(features, num_columns, num_samples, clusters); };
  switch (num_bytes) {
    case 1: add(Clusters<1>(num, bits, step, most, seen, sizes)); break;
    case 2: add(Clusters<2>(num, bits, step, most, seen, sizes)); break;
    case 4: add(Clusters<4>(num, bits, step, most, seen, sizes)); break;
    default: add(Clusters<8>(num, bits, step, most, seen, sizes));
  }
  return 0;
}
