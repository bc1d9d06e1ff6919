// Shuffles with (seed, epoch, rank), each epoch from the ascending order.
#include "bench/train/trainer/shard.h"

#include "bench/train/trainer/random.h"

#include <stdexcept>
#include <string>

namespace trainer {
namespace {

/// Returns the number of images per rank. Throws if a rank has less than one batch.
std::size_t share(std::size_t images, RankOf rank_of, std::size_t batch_images) {
  if (rank_of.rank >= rank_of.ranks)
    throw std::invalid_argument("there is no rank " + std::to_string(rank_of.rank) + " among " +
                                std::to_string(rank_of.ranks));
  if (batch_images == 0 || images / rank_of.ranks < batch_images)
    throw std::invalid_argument(std::to_string(images) + " images on " +
                                std::to_string(rank_of.ranks) + " ranks make no batch of " +
                                std::to_string(batch_images) + " images a rank");
  return images / rank_of.ranks;
}

}  // namespace

Shard::Shard(std::size_t images, RankOf rank_of, std::size_t batch_images, std::uint64_t seed)
    : rank_of_(rank_of),
      batch_images_(batch_images),
      seed_(seed),
      indices_(share(images, rank_of, batch_images)) {
  shuffle_for(0);
}

std::span<const std::uint32_t> Shard::batch(std::size_t step) {
  const std::size_t epoch = step / steps_per_epoch();
  if (epoch != shuffled_epoch_) shuffle_for(epoch);
  return std::span(indices_).subspan(step % steps_per_epoch() * batch_images_, batch_images_);
}

void Shard::shuffle_for(std::size_t epoch) {
  for (std::size_t i = 0; i < indices_.size(); ++i)
    indices_[i] = static_cast<std::uint32_t>(i * rank_of_.ranks + rank_of_.rank);
  Random random({seed_, epoch, rank_of_.rank});
  shuffle(indices_, random);
  shuffled_epoch_ = epoch;
}

}  // namespace trainer
