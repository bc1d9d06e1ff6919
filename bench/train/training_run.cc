// The trainer's loop on a shard of the images. The backward pass passes each gradient to the
// GradientReducer at once. The optimizer steps after all gradients are reduced.

#include "bench/train/training_run.h"

#include <tersor/error.h>
#include <tersor/reducer.h>

#include <deque>
#include <span>

#include "bench/common/compare.h"
#include "bench/common/timing.h"
#include "bench/ranks/gradients.h"
#include "bench/train/trainer/shard.h"

namespace tersor::bench {
namespace {

/// The fields summed over the steps of an epoch, by the rank or by its reducer.
constexpr double EpochResult::*kSums[] = {
    &EpochResult::loss,           &EpochResult::wire_bytes,   &EpochResult::step_seconds,
    &EpochResult::encode_seconds, &EpochResult::wire_seconds, &EpochResult::decode_seconds,
    &EpochResult::exposed_seconds};

trainer::Shard make_shard(const TrainingRun& run, const trainer::TrainingData& data, int rank,
                          int ranks) {
  return {data.train.count(),
          {static_cast<std::uint32_t>(rank), static_cast<std::uint32_t>(ranks)},
          run.recipe.batch_images,
          run.seed};
}

/// A rank with its network, its share of the images, and its reducer.
class TrainingRank {
 public:
  TrainingRank(const TrainingRun& run, const trainer::TrainingData& data, Transport& transport)
      : recipe_(run.recipe),
        data_(data),
        network_(run.recipe.widths(data.train.pixels, data.train.classes), run.seed),
        shard_(make_shard(run, data, transport.rank(), transport.ranks())),
        reducer_(transport, {.codec = run.codec, .reduction = Reduction::kMean, .seed = run.seed}) {
    for (const trainer::Parameter& parameter : network_.parameters())
      reducer_.add(parameter.name, parameter.gradient, parameter.columns > 1 ? parameter.rows : 0,
                   parameter.columns > 1 ? parameter.columns : 0);
  }

  /// Trains on a batch, adds to the epoch's sums, and passes each gradient to `look` (may be
  /// empty).
  void step(EpochResult& epoch, const std::function<void(const trainer::Parameter&)>& on_gradient) {
    const Stopwatch step;
    const auto ready = [&](const trainer::Parameter& parameter) {
      if (on_gradient) on_gradient(parameter);
      reducer_.ready(parameter.name);
    };
    data_.train.read(shard_.batch(step_), batch_);
    epoch.loss += network_.forward(batch_).loss;
    network_.backward(ready);
    const Stopwatch waiting;
    reducer_.wait();
    epoch.exposed_seconds += waiting.seconds();
    network_.descend(recipe_.learning_rate_at(step_, steps()), recipe_.momentum);
    epoch.step_seconds += step.seconds();
    ++step_;
  }

  std::size_t steps() const { return shard_.steps_per_epoch(); }
  double accuracy() { return trainer::accuracy(network_, data_.test); }
  GradientReducer& reducer() { return reducer_; }
  const std::vector<trainer::Parameter>& parameters() const { return network_.parameters(); }

 private:
  trainer::TrainingRecipe recipe_;
  const trainer::TrainingData& data_;
  trainer::Network network_;
  trainer::Shard shard_;
  trainer::Examples batch_;
  GradientReducer reducer_;
  std::size_t step_ = 0;
};

/// The means over ranks and steps of the ranks' sums.
EpochResult mean_over_ranks(const std::vector<std::vector<EpochResult>>& of_ranks,
                            std::size_t steps) {
  EpochResult mean;
  const double share = 1.0 / (static_cast<double>(of_ranks.size()) * static_cast<double>(steps));
  for (const auto& own : of_ranks)
    for (const auto sum : kSums) mean.*sum += share * own.front().*sum;
  mean.compute_seconds = mean.step_seconds - mean.exposed_seconds;
  return mean;
}

void add_statistics(EpochResult& epoch, const ReducerStatistics& statistics) {
  epoch.wire_bytes = static_cast<double>(statistics.sent_bytes);
  epoch.encode_seconds = statistics.encode_seconds;
  epoch.wire_seconds = statistics.wire_seconds;
  epoch.decode_seconds = statistics.decode_seconds;
}

/// Trains an epoch. The epoch's time ends when all ranks have finished.
EpochResult train_epoch(TrainingRank& trainer, Rank& rank, const TrainingObserver& observer) {
  EpochResult sums;
  trainer.reducer().reset_statistics();
  rank.barrier();
  const Stopwatch watch;
  for (std::size_t step = 0; step < trainer.steps(); ++step) {
    const bool reports = rank.is_rank0() && step + 1 == trainer.steps();
    trainer.step(sums, reports ? observer.gradient : nullptr);
    if (rank.is_rank0() && observer.step) observer.step();
  }
  rank.barrier();
  const double seconds = watch.seconds();
  add_statistics(sums, trainer.reducer().statistics());
  EpochResult result =
      mean_over_ranks(rank.gather(std::span<const EpochResult>(&sums, 1)), trainer.steps());
  result.seconds = seconds;
  return result;
}

/// Throws unless all ranks have equal weights, because ranks with different weights train different
/// networks.
void check_weights(TrainingRank& trainer, Rank& rank, const std::string& codec) {
  for (const trainer::Parameter& parameter : trainer.parameters())
    check_identical(rank, {parameter.values.pointer(), parameter.values.bytes()},
                    codec + ", " + parameter.name);
}

/// Trains all runs of a rank. After each epoch, rank 0 evaluates the network while the other ranks
/// wait.
std::vector<Epochs> train_rank(const std::vector<TrainingRun>& runs,
                               const trainer::TrainingData& data, const TrainingObserver& observer,
                               Rank& rank) {
  std::deque<TrainingRank> trainers;
  for (const TrainingRun& run : runs) trainers.emplace_back(run, data, rank.transport());
  std::vector<Epochs> results(runs.size());
  for (std::size_t epoch = 1; epoch <= runs.front().recipe.epochs; ++epoch)
    for (std::size_t i = 0; i < runs.size(); ++i) {
      const double earlier = epoch == 1 ? 0 : results[i].back().seconds;
      EpochResult& result = results[i].emplace_back(train_epoch(trainers[i], rank, observer));
      result.epoch = epoch;
      result.seconds += earlier;
      if (rank.is_rank0()) result.accuracy = trainers[i].accuracy();
      if (rank.is_rank0() && observer.epoch) observer.epoch(runs[i], result);
      rank.barrier();
    }
  for (std::size_t i = 0; i < runs.size(); ++i) check_weights(trainers[i], rank, runs[i].codec);
  return results;
}

}  // namespace

std::size_t total_steps(const TrainingRun& run, const trainer::TrainingData& data, int ranks) {
  return make_shard(run, data, 0, ranks).steps_per_epoch() * run.recipe.epochs;
}

std::vector<Epochs> train(Fleet& fleet, const std::vector<TrainingRun>& runs,
                          const trainer::TrainingData& data, const TrainingObserver& observer) {
  return measure_on(fleet, [&](Rank& rank) { return train_rank(runs, data, observer, rank); });
}

}  // namespace tersor::bench
