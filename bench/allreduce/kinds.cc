// The calls and the checks of all collectives.

#include <tersor/sending.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "bench/allreduce/rank.h"
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

/// Only rank 0 knows the sum.
double sum_error(const RankGradients& gradients, int rank, ConstValueSpan output) {
  return rank == 0 ? relative_error(gradients.sum(), output) : 0;
}

/// The maximum error over the shards of all ranks for rank `to`.
double error_of_shards_for(const RankGradients& gradients, int to, ConstValueSpan output) {
  double largest = 0;
  for (int from = 0; from < gradients.ranks(); ++from) {
    const double error = error_of(gradients, from, to, shard_of(gradients, output, from));
    if (std::isnan(error)) return error;  // std::max would ignore a NaN
    largest = std::max(largest, error);
  }
  return largest;
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
        "allreduce", "MPI_Allreduce", Amount::kWhole, Amount::kWhole,
        [](const CollectiveCall& of) { allreduce(of.transport, of.output, of.options, of.stream); },
        sum_error, true},
    CollectiveKind{"reduce_scatter", "", Amount::kWhole, Amount::kShard,
                   [](const CollectiveCall& of) {
                     reduce_scatter(of.transport, of.input, of.output, of.options, of.stream);
                   },
                   sum_error, true},
    CollectiveKind{
        "broadcast", "MPI_Bcast", Amount::kWhole, Amount::kWhole,
        [](const CollectiveCall& of) { broadcast(of.transport, of.output, 0, of.options); },
        error_of_first},
    CollectiveKind{
        "reduce", "MPI_Reduce", Amount::kWhole, Amount::kWhole,
        [](const CollectiveCall& of) { reduce(of.transport, of.input, of.output, 0, of.options); },
        sum_error},
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

}  // namespace

constinit const std::span<const CollectiveKind> kCollectiveKinds = kKinds;

}  // namespace tersor::bench
