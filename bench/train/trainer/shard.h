// A rank's share of the training images, in a new order each epoch.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
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
  /// Throws std::invalid_argument if a rank has less than one whole batch.
  Shard(std::size_t images, RankOf rank_of, std::size_t batch_images, std::uint64_t seed)
      : rank_of_(rank_of),
        batch_images_(batch_images),
        seed_(seed),
        indices_(images / std::max(rank_of.ranks, 1u)) {
    if (batch_images == 0 || indices_.size() < batch_images || rank_of.rank >= rank_of.ranks)
      throw std::invalid_argument(std::to_string(images) + " images on " +
                                  std::to_string(rank_of.ranks) + " ranks make no batch of " +
                                  std::to_string(batch_images) + " images a rank");
    shuffle(0);
  }

  /// The number of whole batches per epoch. An epoch leaves out the images after the last whole
  /// batch.
  std::size_t steps_per_epoch() const { return indices_.size() / batch_images_; }

  /// The image indices of a step (counted from the start of the training), valid until the next
  /// call. Depends only on seed, rank and step.
  std::span<const std::uint32_t> batch(std::size_t step) {
    const std::size_t epoch = step / steps_per_epoch();
    if (epoch != shuffled_epoch_) shuffle(epoch);
    return std::span(indices_).subspan(step % steps_per_epoch() * batch_images_, batch_images_);
  }

 private:
  /// Each epoch starts from the ascending order.
  void shuffle(std::size_t epoch) {
    for (std::size_t i = 0; i < indices_.size(); ++i)
      indices_[i] = static_cast<std::uint32_t>(i * rank_of_.ranks + rank_of_.rank);
    std::seed_seq words{seed_, seed_ >> 32, std::uint64_t{epoch}, std::uint64_t{rank_of_.rank}};
    std::shuffle(indices_.begin(), indices_.end(), std::mt19937_64(words));
    shuffled_epoch_ = epoch;
  }

  RankOf rank_of_;
  std::size_t batch_images_;
  std::uint64_t seed_;
  std::size_t shuffled_epoch_ = 0;
  std::vector<std::uint32_t> indices_;
};

}  // namespace trainer
