// Implements rank.h.

#include "bench/allreduce/rank.h"

#include <fmt/format.h>

#include <cstring>

#include "bench/common/compare.h"
#include "kernels/device/device_memory.h"

namespace tersor::bench {
namespace {

/// Copies within host or device memory. A copy on a device is queued.
void copy(ConstByteSpan from, ByteSpan to, Memory memory, StreamView stream) {
  if (memory == Memory::kDevice)
    return kernels::copy_bytes(to.data(), from.data(), from.size(), stream);
  std::memcpy(to.data(), from.data(), from.size());
}

}  // namespace

std::vector<CallResult> measure_cases(
    Rank& rank, std::span<const MeasuredCase> cases,
    const std::function<std::unique_ptr<CollectiveRank>(const MeasuredCase&)>& make) {
  std::vector<std::unique_ptr<CollectiveRank>> ranks;
  std::vector<RankCall*> callers;
  for (const MeasuredCase& one : cases) {
    callers.push_back(ranks.emplace_back(make(one)).get());
    ranks.back()->check(*one.gradients);
  }
  const std::size_t iterations = warm_up(callers, rank, cases.front().config.iterations);
  const auto times = time_iterations(callers, rank, iterations);
  std::vector<CallResult> results;
  for (std::size_t i = 0; i < ranks.size(); ++i) results.push_back(ranks[i]->result(times[i]));
  return results;
}

CallResult measure_collective(Fleet& fleet, const CollectiveCase& config,
                              const RankGradients& gradients) {
  const MeasuredCase one{config, &gradients};
  return measure_on(fleet, [&](Rank& rank) {
    const auto make = [&](const MeasuredCase&) {
      return std::make_unique<CollectiveRank>(config, gradients.of(rank.index()), rank);
    };
    return measure_cases(rank, {&one, 1}, make).front();
  });
}

CollectiveRank::CollectiveRank(const CollectiveCase& config, ConstValueSpan input, Rank& rank,
                               StreamView stream)
    : config_(config),
      rank_(rank),
      stream_(stream),
      input_(input),
      storage_(input.bytes(), input.memory()),
      threads_(config.threads) {
  if (config_.by_library) return;
  if (config.codec == kAutoCodec)
    tuner_ = std::make_unique<Tuner>(rank.transport(), config.automatic);
  const bool feedback =
      config_.kind->sums_for_all && tuner_ == nullptr && make_codec(config.codec)->has_feedback();
  if (feedback) make_state();
  options_ = {.codec = config_.codec,
              .algorithm = config_.algorithm,
              .dims = config_.dims,
              .state = feedback ? &state_ : nullptr,
              .chunk_count = config_.chunk_count,
              .threads = &threads_,
              .workspace = &workspace_,
              .statistics = &statistics_,
              .tuner = tuner_.get()};
}

void CollectiveRank::check(const RankGradients& gradients) {
  while (tuner_ != nullptr && !tuner_->settled(input_.dtype(), input_.count()))
    time_iteration(*this, rank_);
  time_iteration(*this, rank_);
  const CollectiveKind& kind = *config_.kind;
  const bool in_shards = kind.sums_for_all && kind.output == Amount::kShard;
  if (in_shards) allgather(rank_.transport(), shard(), whole(), {.codec = "none"}, stream_);
  const ValueSpan result = in_shards ? whole() : output();
  if (kind.sums_for_all) check_identical(rank_, {result.pointer(), result.bytes()}, codec());
  const double error = kind.error(gradients, rank_.index(), result);
  require_within(error, rank_.from_rank0(rank_.is_rank0() ? gradients.error_limit(codec()) : 0.0),
                 fmt::format("{} of {} values by {}", kind.name, gradients.count(), config_.codec));
  relative_error_ = rank_.maximum(error);
}

std::string CollectiveRank::codec() const {
  if (config_.by_library) return "none";
  return tuner_ == nullptr ? config_.codec : tuner_->choose(input_.dtype(), input_.count()).codec;
}

ConstValueSpan CollectiveRank::input() const {
  return input_.subspan(0,
                        config_.kind->input == Amount::kWhole ? input_.count() : shard().count());
}

// Also prepares the output, because a broadcast is in place.
void CollectiveRank::restore() {
  copy({input().pointer(), input().bytes()}, storage_.span(), input_.memory(), stream_);
}

void CollectiveRank::call() {
  const CollectiveKind& kind = *config_.kind;
  if (!config_.by_library)
    return kind.run({rank_.transport(), input(), output(), config_.columns, options_, stream_});
  if (kind.sums_for_all) return rank_.library()->sum(output(), stream_);
  rank_.library()->call(kind.library, input(), output());
}

ValueSpan CollectiveRank::shard() const {
  const std::size_t count = input_.count() / static_cast<std::size_t>(rank_.transport().ranks());
  return whole().subspan(static_cast<std::size_t>(rank_.index()) * count, count);
}

void CollectiveRank::make_state() {
  const std::size_t count = input_.count();
  const int rank = rank_.transport().rank();
  const std::size_t unit = make_codec(config_.codec)->traits().unit;
  std::size_t encoded = count,
              owned = owned_count(count, rank, rank_.transport().ranks(), 0, unit, config_.dims);
  if (config_.algorithm == Algorithm::kHierarchical) {
    const std::vector<int> hosts = rank_.transport().hosts();
    const bool scatters = config_.kind->output == Amount::kShard;
    encoded = scatters ? scattered_count(count, hosts) : encoded_count(count, rank, hosts, 0, unit);
    owned = owned_count(count, rank, hosts, 0, unit);
  }
  static constexpr StateWords kFirstWords;
  residual_ = zeros(encoded * sizeof(float));
  owner_residual_ = zeros(owned * sizeof(float));
  words_ = Buffer(sizeof kFirstWords, input_.memory());
  copy(std::as_bytes(std::span(&kFirstWords, 1)), words_.span(), input_.memory(), stream_);
  state_ = {.residual = residual_.values(encoded, Dtype::kF32),
            .owner_residual = owner_residual_.values(owned, Dtype::kF32),
            .words = reinterpret_cast<StateWords*>(words_.pointer())};
}

Buffer CollectiveRank::zeros(std::size_t bytes) const {
  Buffer buffer(bytes, input_.memory());
  if (bytes == 0) return buffer;
  if (input_.memory() == Memory::kDevice)
    kernels::zero_bytes(buffer.pointer(), bytes, stream_);
  else
    std::memset(buffer.pointer(), 0, bytes);
  return buffer;
}

}  // namespace tersor::bench
