// See buckets.h. A *rider* is a small or 1-D parameter without a residual. A rider uses any
// algorithm of its bucket. Other parameters share a bucket only with parameters of the same
// algorithm.
#include "comm/reducer/buckets.h"

#include <algorithm>
#include <optional>

namespace tersor {
namespace {

constexpr std::size_t kRiderCount = 4096;         // values of a rider of any shape
constexpr std::size_t kVectorRiderBytes = 65536;  // gradient bytes of a 1-D rider

std::size_t bytes_of(const Slot& slot) { return slot.count * dtype_bytes(slot.dtype); }

bool is_small(const Slot& slot) {
  const bool vector = slot.rows <= 1 || slot.columns <= 1;
  return slot.count < kRiderCount || (vector && bytes_of(slot) <= kVectorRiderBytes);
}

bool is_rider(const Slot& slot) {
  return is_small(slot) && !slot.codec->has_feedback() &&
         can_go(*slot.codec, slot.dtype, Algorithm::kTwoShot);
}

// An all-gathered parameter with an output window has its own bucket.
bool can_share(const Slot& a, const Slot& b) {
  return a.collective == b.collective && !a.window && !b.window;
}

bool equal_wire(const Slot& a, const Slot& b) { return a.codec == b.codec && a.dtype == b.dtype; }

/// A bucket while parameters are added.
class Filling {
 public:
  Filling(const Planner& planner, const BucketOptions& options)
      : planner_(&planner), options_(options) {}

  bool fits(std::uint32_t index) const {
    if (slots_.empty()) return true;
    const Slot& slot = slot_at(index);
    if (bytes_ + bytes_of(slot) > options_.bucket_bytes) return false;
    if (!can_share(slot_at(slots_.front()), slot)) return false;
    if (is_rider(slot)) return algorithm_ != Algorithm::kNative || uniform_with(slot);
    const Algorithm wanted = way_of(slot);
    if (wanted == Algorithm::kNative && !uniform_with(slot)) return false;
    return !algorithm_.has_value() || *algorithm_ == wanted;
  }

  void add(std::uint32_t index) {
    const Slot& slot = slot_at(index);
    slots_.push_back(index);
    bytes_ += bytes_of(slot);
    if (!is_rider(slot)) algorithm_ = way_of(slot);
  }

  Bucket close() const {
    Bucket bucket{.slots = slots_, .algorithm = algorithm_.value_or(way_of_riders()), .chunks = {}};
    if (slots_.size() == 1) {
      const std::size_t chosen = planner_->slots()[slots_.front()].chunk_count;
      bucket.chunks = planner_->cut(slots_.front(), bucket.algorithm,
                                    chosen != 0 ? chosen : options_.chunk_count);
    } else {
      bucket.chunks.push_back(planner_->whole(slots_, bucket.algorithm));
    }
    return bucket;
  }

 private:
  const Slot& slot_at(std::uint32_t index) const { return planner_->slots()[index]; }

  Algorithm way_of(const Slot& slot) const {
    return preferred_algorithm(slot, planner_->encoding_ranks(slot), options_.algorithm);
  }

  bool uniform_with(const Slot& slot) const {
    return std::all_of(slots_.begin(), slots_.end(),
                       [&](std::uint32_t other) { return equal_wire(slot_at(other), slot); });
  }

  // The algorithm of a bucket of riders only: one-shot if the bucket is small, otherwise the first
  // rider's algorithm.
  Algorithm way_of_riders() const {
    const Slot& first = slot_at(slots_.front());
    const Algorithm way = way_of(first);
    if (first.collective == Collective::kReduceScatter) return way;
    if (options_.algorithm == Algorithm::kAuto && bytes_ <= kOneShotBytes)
      return Algorithm::kOneShot;
    if (way != Algorithm::kNative || uniform_with(first)) return way;
    return planner_->encoding_ranks(first) > 2 ? Algorithm::kTwoShot : Algorithm::kOneShot;
  }

  const Planner* planner_;
  BucketOptions options_;
  std::vector<std::uint32_t> slots_;
  std::size_t bytes_ = 0;
  std::optional<Algorithm> algorithm_;  ///< algorithm of the first parameter other than a rider
};

}  // namespace

Algorithm preferred_algorithm(const Slot& slot, int ranks, Algorithm wanted) {
  constexpr std::size_t kAnyLargeCount = std::size_t{1} << 28;
  if (slot.collective == Collective::kReduceScatter)
    return choose_scatter(*slot.codec, slot.dtype, "reduce_scatter");
  const bool chosen = slot.algorithm != Algorithm::kAuto;
  return choose_algorithm({.codec = slot.codec.get(),
                           .dtype = slot.dtype,
                           .count = kAnyLargeCount,
                           .ranks = ranks,
                           .wanted = chosen ? slot.algorithm : wanted,
                           .any_shape = true});
}

std::vector<Bucket> make_buckets(const Planner& planner, std::span<const std::uint32_t> order,
                                 const BucketOptions& options) {
  std::vector<Bucket> buckets;
  Filling filling(planner, options);
  bool empty = true;
  for (const std::uint32_t index : order) {
    if (!filling.fits(index)) {
      buckets.push_back(filling.close());
      filling = Filling(planner, options);
    }
    filling.add(index);
    empty = false;
  }
  if (!empty) buckets.push_back(filling.close());
  return buckets;
}

}  // namespace tersor
