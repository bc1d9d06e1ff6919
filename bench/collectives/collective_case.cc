
#include "bench/collectives/collective_case.h"

#include <fmt/format.h>
#include <tersor/sending.h>
#include <tersor/threads.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "bench/common/compare.h"

namespace tersor::bench {
namespace {

std::size_t shard_count(const RankGradients& gradients) {
  return gradients.count() / static_cast<std::size_t>(gradients.ranks());
}

ConstValueSpan shard_of(const RankGradients& gradients, ConstValueSpan whole, int rank) {
  const std::size_t count = shard_count(gradients);
  return whole.subspan(static_cast<std::size_t>(rank) * count, count);
}

/// The error relative to the values of rank `from`: the whole or, if the output has the size of a
/// shard, the shard number `to`.
double error_of(const RankGradients& gradients, int from, int to, ConstValueSpan output) {
  const Buffer sample = gradients.sample(from);
  const ConstValueSpan whole = sample.values(gradients.count(), gradients.dtype());
  const bool all = output.count() == whole.count();
  return relative_error(all ? whole : shard_of(gradients, whole, to), output);
}

double error_of_first(const RankGradients& gradients, int rank, ConstValueSpan output) {
  return error_of(gradients, 0, rank, output);
}

double reduce_error(const RankGradients& gradients, int rank, ConstValueSpan output) {
  return rank == 0 ? relative_error(gradients.sum(), output) : 0;
}

/// The maximum error over the shards of all ranks for rank `to`.
double error_of_shards_for(const RankGradients& gradients, int to, ConstValueSpan output) {
  double error = 0;
  for (int from = 0; from < gradients.ranks(); ++from)
    error = std::max(error, error_of(gradients, from, to, shard_of(gradients, output, from)));
  return error;
}

double gather_error(const RankGradients& gradients, int rank, ConstValueSpan output) {
  return rank == 0 ? error_of_shards_for(gradients, 0, output) : 0;
}

double send_error(const RankGradients& gradients, int rank, ConstValueSpan output) {
  return error_of(gradients, rank_before(rank, gradients.ranks()), rank, output);
}

// Each rank sends to the next rank, the last rank to the first. Messages fill no statistics, so
// this function does.
void send_and_receive(const CollectiveCall& of) {
  const int rank = of.transport.rank(), ranks = of.transport.ranks();
  const std::uint64_t sent = of.transport.counters().sent_bytes;
  Sending sending = send(of.transport, of.input, next_rank(rank, ranks), of.options);
  receive(of.transport, of.output, rank_before(rank, ranks), of.options).wait();
  sending.wait();
  *of.options.statistics = {.algorithm = Algorithm::kOneShot,
                            .sent_bytes = of.transport.counters().sent_bytes - sent};
}

constexpr std::array kKinds{
    CollectiveKind{
        "broadcast", "MPI_Bcast", Amount::kWhole, Amount::kWhole,
        [](const CollectiveCall& of) { broadcast(of.transport, of.output, 0, of.options); },
        error_of_first},
    CollectiveKind{
        "reduce", "MPI_Reduce", Amount::kWhole, Amount::kWhole,
        [](const CollectiveCall& of) { reduce(of.transport, of.input, of.output, 0, of.options); },
        reduce_error},
    CollectiveKind{
        "gather", "MPI_Gather", Amount::kShard, Amount::kWhole,
        [](const CollectiveCall& of) { gather(of.transport, of.input, of.output, 0, of.options); },
        gather_error},
    CollectiveKind{
        "scatter", "MPI_Scatter", Amount::kWhole, Amount::kShard,
        [](const CollectiveCall& of) { scatter(of.transport, of.input, of.output, 0, of.options); },
        error_of_first},
    CollectiveKind{"all_to_all", "MPI_Alltoall", Amount::kWhole, Amount::kWhole,
                   [](const CollectiveCall& of) {
                     all_to_all(of.transport, of.input, of.output, of.columns, {}, of.options);
                   },
                   error_of_shards_for},
    CollectiveKind{"send_receive", "MPI_Sendrecv", Amount::kWhole, Amount::kWhole, send_and_receive,
                   send_error},
};

/// A rank's calls. Each call starts with fresh values.
class CollectiveRank final : public RankCall {
 public:
  CollectiveRank(const CollectiveCase& wanted, const RankGradients& gradients, Rank& rank)
      : wanted_(wanted),
        rank_(rank),
        input_(gradients.of(rank.index()).subspan(0, count(gradients, wanted.kind->gives))),
        output_count_(count(gradients, wanted.kind->gets)),
        storage_(output_count_ * dtype_bytes(gradients.dtype())),
        threads_(wanted.threads) {
    options_ = {.codec = wanted.codec,
                .algorithm = wanted.algorithm,
                .chunk_count = wanted.chunk_count,
                .threads = &threads_,
                .workspace = &workspace_,
                .statistics = &statistics_};
  }

  ValueSpan output() const { return storage_.values(output_count_, input_.dtype()); }

  // Also prepares the output, because a broadcast is in place.
  void restore() override {
    std::memcpy(storage_.pointer(), input_.pointer(), std::min(storage_.bytes(), input_.bytes()));
  }

  void call() override {
    if (wanted_.by_library) return rank_.library()->call(wanted_.kind->library, input_, output());
    wanted_.kind->make({rank_.transport(), input_, output(), wanted_.columns, options_});
  }

  const CollectiveStatistics& statistics() const override { return statistics_; }

 private:
  static std::size_t count(const RankGradients& gradients, Amount amount) {
    return amount == Amount::kShard ? shard_count(gradients) : gradients.count();
  }

  const CollectiveCase& wanted_;
  Rank& rank_;
  ConstValueSpan input_;
  std::size_t output_count_;
  Buffer storage_;
  Threads threads_;
  CollectiveWorkspace workspace_;
  CollectiveStatistics statistics_;
  CollectiveOptions options_;
};

/// Every rank checks its output. Returns the maximum relative error.
double check_first_call(const CollectiveCase& wanted, const RankGradients& gradients, Rank& rank,
                        CollectiveRank& caller) {
  time_iteration(caller, rank);
  const double error = rank.largest(wanted.kind->error(gradients, rank.index(), caller.output()));
  const std::string codec = wanted.by_library ? "none" : wanted.codec;
  const double limit = rank.from_first(rank.first() ? gradients.error_limit(codec) : 0.0);
  require_within(error, limit,
                 fmt::format("{} of {} values by {}", wanted.kind->name, gradients.count(), codec));
  return error;
}

}  // namespace

std::span<const CollectiveKind> collective_kinds() { return kKinds; }

CallResult measure_collective(Fleet& fleet, const CollectiveCase& wanted,
                              const RankGradients& gradients) {
  return measure_on(fleet, [&](Rank& rank) {
    CollectiveRank caller(wanted, gradients, rank);
    const double error = check_first_call(wanted, gradients, rank, caller);
    return CallResult{time_iterations(caller, rank, wanted.iterations), wanted.codec, error};
  });
}

}  // namespace tersor::bench
