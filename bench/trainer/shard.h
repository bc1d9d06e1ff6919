// A rank's own share of the training images, in another order each epoch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace trainer {

/// Which rank of how many.
struct RankOf {
  std::uint32_t rank = 0;
  std::uint32_t ranks = 1;
};

/// Images rank, rank + ranks, rank + 2 * ranks, …: floor(images / ranks) of them, so that all ranks
/// take as many steps. No image belongs to two ranks.
class Shard {
 public:
  /// Throws std::invalid_argument where `rank` is not below `ranks` or a rank would not have one
  /// whole batch.
  Shard(std::size_t images, RankOf rank_of, std::size_t batch_images, std::uint64_t seed);

  /// Whole batches of an epoch; images beyond the last are left out of that epoch.
  std::size_t steps_per_epoch() const { return indices_.size() / batch_images_; }

  /// The indices of the images of a step (counted from the start of the training), valid until the
  /// next call. Depends on seed, rank and step alone.
  std::span<const std::uint32_t> batch(std::size_t step);

 private:
  void shuffle_for(std::size_t epoch);

  RankOf rank_of_;
  std::size_t batch_images_;
  std::uint64_t seed_;
  std::size_t shuffled_epoch_ = 0;
  std::vector<std::uint32_t> indices_;
};

}  // namespace trainer
