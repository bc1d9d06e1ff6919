// The trainer's loop: a rank's own shard, a backward pass that hands each gradient to the
// GradientReducer as soon as it is there, and a step of the optimizer once all are reduced.

#include "bench/training_run.h"

#include <tersor/error.h>
#include <tersor/reducer.h>

#include <optional>
#include <span>

#include "bench/compare.h"
#include "bench/ranks.h"
#include "bench/timing.h"
#include "bench/trainer/momentum_sgd.h"
#include "bench/trainer/perceptron.h"
#include "bench/trainer/shard.h"

namespace tersor::bench {
namespace {

/// Sums over the steps of an epoch of one rank.
struct RankEpoch {
  double step_seconds = 0;
  double exposed_seconds = 0;
  double loss = 0;
  ReducerStatistics reducer;
};

/// What the ranks of a run share.
struct Shared {
  Shared(const TrainingRun& training, const trainer::TrainingData& training_data,
         const TrainingObserver& training_observer)
      : run(training),
        data(training_data),
        observer(training_observer),
        meeting(training.ranks),
        epochs(static_cast<std::size_t>(training.ranks)),
        weights(epochs.size()) {}

  const TrainingRun& run;
  const trainer::TrainingData& data;
  const TrainingObserver& observer;
  Meeting meeting;
  std::vector<RankEpoch> epochs;  // of each rank, the current one
  std::vector<ConstByteSpan> weights;
  double seconds = 0;
  std::vector<EpochResult> results;
};

std::vector<std::size_t> widths(const TrainingRun& run, const trainer::TrainingData& data) {
  std::vector<std::size_t> all = {data.train.pixels};
  all.insert(all.end(), run.recipe.hidden_widths.begin(), run.recipe.hidden_widths.end());
  all.push_back(data.train.classes);
  return all;
}

trainer::Shard make_shard(const TrainingRun& run, const trainer::TrainingData& data, int rank) {
  return {data.train.count(),
          {static_cast<std::uint32_t>(rank), static_cast<std::uint32_t>(run.ranks)},
          run.recipe.batch_images,
          run.seed};
}

ReducerOptions reducer_options(const TrainingRun& run) {
  return {.codec = run.codec, .reduction = Reduction::kMean, .seed = run.seed};
}

/// One rank: its network, its share of the images, its reducer.
class TrainingRank {
 public:
  TrainingRank(const TrainingRun& run, const trainer::TrainingData& data, Transport& transport)
      : recipe_(run.recipe),
        data_(data),
        network_(widths(run, data), run.seed),
        shard_(make_shard(run, data, transport.rank())),
        optimizer_(network_.parameters(), run.recipe.momentum),
        reducer_(transport, reducer_options(run)) {
    for (const trainer::Parameter& parameter : network_.parameters())
      reducer_.add(parameter.name, parameter.gradient, parameter.columns > 1 ? parameter.rows : 0,
                   parameter.columns > 1 ? parameter.columns : 0);
  }

  /// Trains on a batch; adds to the epoch's sums.
  void step(RankEpoch& epoch) {
    const Stopwatch step;
    const auto ready = [this](const trainer::Parameter& parameter) {
      reducer_.ready(parameter.name);
    };
    epoch.loss += network_.forward_backward(data_.train, shard_.batch(step_), ready);
    const Stopwatch waiting;
    reducer_.wait();
    epoch.exposed_seconds += waiting.seconds();
    optimizer_.step(recipe_.learning_rate_at(step_, steps()));
    epoch.step_seconds += step.seconds();
    ++step_;
  }

  std::size_t steps() const { return shard_.steps_per_epoch(); }
  double accuracy() { return network_.accuracy(data_.test); }
  GradientReducer& reducer() { return reducer_; }
  std::span<const trainer::Parameter> parameters() const { return network_.parameters(); }

 private:
  trainer::TrainingRecipe recipe_;
  const trainer::TrainingData& data_;
  trainer::Perceptron network_;
  trainer::Shard shard_;
  trainer::MomentumSgd optimizer_;
  GradientReducer reducer_;
  std::size_t step_ = 0;
};

/// The means over ranks and steps of what the ranks summed up.
EpochResult mean_over_ranks(const Shared& shared, std::size_t steps) {
  EpochResult mean;
  const double share =
      1.0 / (static_cast<double>(shared.epochs.size()) * static_cast<double>(steps));
  for (const RankEpoch& rank : shared.epochs) {
    mean.loss += share * rank.loss;
    mean.step_seconds += share * rank.step_seconds;
    mean.exposed_seconds += share * rank.exposed_seconds;
    mean.wire_bytes += share * static_cast<double>(rank.reducer.sent_bytes);
    mean.encode_seconds += share * rank.reducer.encode_seconds;
    mean.wire_seconds += share * rank.reducer.wire_seconds;
    mean.decode_seconds += share * rank.reducer.decode_seconds;
  }
  mean.compute_seconds = mean.step_seconds - mean.exposed_seconds;
  return mean;
}

/// Trains an epoch and returns how long it took until all ranks were through.
double train_epoch(Shared& shared, TrainingRank& rank, std::size_t index, Meeting::Member& member) {
  RankEpoch& sums = shared.epochs[index];
  sums = {};
  rank.reducer().reset_statistics();
  member.meet();
  const Stopwatch watch;
  for (std::size_t step = 0; step < rank.steps(); ++step) {
    rank.step(sums);
    if (index == 0 && shared.observer.step) shared.observer.step();
  }
  member.meet();
  const double seconds = watch.seconds();
  sums.reducer = rank.reducer().statistics();
  member.meet();
  return seconds;
}

/// Rank 0, while the others wait: how good the network is now.
void conclude_epoch(Shared& shared, TrainingRank& rank, double seconds) {
  shared.seconds += seconds;
  EpochResult result = mean_over_ranks(shared, rank.steps());
  result.epoch = shared.results.size() + 1;
  result.seconds = shared.seconds;
  result.accuracy = rank.accuracy();
  shared.results.push_back(result);
  if (shared.observer.epoch) shared.observer.epoch(result);
}

/// Ranks that have drifted apart would train different networks.
void check_weights(Shared& shared, TrainingRank& rank, std::size_t index, Meeting::Member& member) {
  for (const trainer::Parameter& parameter : rank.parameters()) {
    shared.weights[index] = std::as_bytes(std::span(parameter.values));
    member.meet();
    if (index == 0) check_identical(shared.weights, shared.run.codec + ", " + parameter.name);
    member.meet();
  }
}

void run_rank(Shared& shared, Transport& transport) {
  const auto index = static_cast<std::size_t>(transport.rank());
  Meeting::Member member(shared.meeting);
  TrainingRank rank(shared.run, shared.data, transport);
  for (std::size_t epoch = 0; epoch < shared.run.recipe.epochs; ++epoch) {
    const double seconds = train_epoch(shared, rank, index, member);
    if (index == 0) conclude_epoch(shared, rank, seconds);
    member.meet();
  }
  check_weights(shared, rank, index, member);
}

}  // namespace

std::size_t total_steps(const TrainingRun& run, const trainer::TrainingData& data) {
  return make_shard(run, data, 0).steps_per_epoch() * run.recipe.epochs;
}

std::vector<EpochResult> train(const TrainingRun& run, const trainer::TrainingData& data,
                               const TrainingObserver& observer) {
  Shared shared(run, data, observer);
  run_ranks(run.ranks, run.link, [&](Transport& transport) { run_rank(shared, transport); });
  return shared.results;
}

}  // namespace tersor::bench
