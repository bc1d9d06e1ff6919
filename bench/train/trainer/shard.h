// A rank's share of the training images, in a new order each epoch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace trainer {

/// A rank and the number of ranks.
struct RankOf {
  std::uint32_t rank = 0;
  std::uint32_t ranks = 1;
};

/// Images rank, rank + ranks, rank + 2 * ranks, …, in total floor(images / ranks) images. All ranks
/// therefore make equally many steps. No image belongs to two ranks.
class Shard {
 public:
  /// Throws std::invalid_argument if `rank` is not below `ranks`, or if a rank has less than one
  /// whole batch.
  Shard(std::size_t images, RankOf rank_of, std::size_t batch_images, std::uint64_t seed);

  /// The number of whole batches per epoch. An epoch leaves out the images after the last whole
  /// batch.
  std::size_t steps_per_epoch() const { return indices_.size() / batch_images_; }

  /// The image indices of a step (counted from the start of the training), valid until the next
  /// call. Depends only on seed, rank and step.
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
