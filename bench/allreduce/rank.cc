// Implements rank.h and measure_allreduce.

#include "bench/allreduce/rank.h"

#include <cstring>

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

CallResult measure_allreduce(Fleet& fleet, const AllreduceCase& wanted,
                             const RankGradients& gradients) {
  const DeviceAllreduceCase one{wanted, &gradients};
  return measure_on(fleet, [&](Rank& rank) {
    const auto make = [&](const DeviceAllreduceCase&) {
      return std::make_unique<AllreduceRank>(wanted, gradients.of(rank.index()), rank);
    };
    return measure_cases(rank, {&one, 1}, wanted.iterations, make).front();
  });
}

std::vector<CallResult> measure_cases(
    Rank& rank, std::span<const DeviceAllreduceCase> cases, std::size_t iterations,
    const std::function<std::unique_ptr<AllreduceRank>(const DeviceAllreduceCase&)>& make) {
  std::vector<std::unique_ptr<AllreduceRank>> ranks;
  std::vector<RankCall*> callers;
  for (const DeviceAllreduceCase& one : cases) {
    callers.push_back(ranks.emplace_back(make(one)).get());
    ranks.back()->check(*one.gradients);
  }
  const auto times = time_iterations(callers, rank, warm_up(callers, rank, iterations));
  std::vector<CallResult> results;
  for (std::size_t i = 0; i < ranks.size(); ++i) results.push_back(ranks[i]->result(times[i]));
  return results;
}

AllreduceRank::AllreduceRank(const AllreduceCase& wanted, ConstValueSpan input, Rank& rank,
                             StreamView stream)
    : rank_(rank),
      stream_(stream),
      by_library_(wanted.by_library),
      collective_(wanted.collective),
      input_(input),
      hosts_(wanted.hosts),
      dims_(wanted.dims),
      storage_(input.bytes(), input.memory()),
      threads_(wanted.threads) {
  if (by_library_) return;
  if (wanted.codec == kAutoCodec)
    tuner_ = std::make_unique<Tuner>(rank.transport(), wanted.automatic);
  const bool feedback = tuner_ == nullptr && make_codec(wanted.codec)->has_feedback();
  if (feedback) make_state(wanted);
  options_ = {.codec = wanted.codec,
              .algorithm = wanted.algorithm,
              .hosts = hosts_,
              .dims = dims_,
              .state = feedback ? &state_ : nullptr,
              .chunk_count = wanted.chunk_count,
              .checksum = wanted.checksum,
              .threads = &threads_,
              .workspace = &workspace_,
              .statistics = &statistics_,
              .tuner = tuner_.get()};
}

void AllreduceRank::check(const RankGradients& gradients) {
  while (tuner_ != nullptr && !tuner_->settled(input_.dtype(), input_.count()))
    time_iteration(*this, rank_);
  time_iteration(*this, rank_);
  if (scatters()) allgather(rank_.transport(), shard(), gradient(), {.codec = "none"}, stream_);
  relative_error_ = check_reduced(gradients, rank_, codec(), gradient());
}

std::string AllreduceRank::codec() const {
  if (by_library_) return "none";
  return tuner_ == nullptr ? options_.codec : tuner_->choose(input_.dtype(), input_.count()).codec;
}

void AllreduceRank::restore() {
  copy({input_.pointer(), input_.bytes()}, storage_.span(), input_.memory(), stream_);
}

void AllreduceRank::call() {
  if (by_library_) return rank_.library()->sum(gradient(), stream_);
  if (scatters()) return reduce_scatter(rank_.transport(), input_, shard(), options_, stream_);
  allreduce(rank_.transport(), gradient(), options_, stream_);
}

ValueSpan AllreduceRank::shard() const {
  const std::size_t count = input_.count() / static_cast<std::size_t>(rank_.transport().ranks());
  return gradient().subspan(static_cast<std::size_t>(rank_.index()) * count, count);
}

void AllreduceRank::make_state(const AllreduceCase& wanted) {
  const std::size_t count = input_.count();
  const int rank = rank_.transport().rank();
  const std::size_t unit = make_codec(wanted.codec)->traits().unit;
  std::size_t encoded = count,
              owned = owned_count(count, rank, rank_.transport().ranks(), 0, unit, dims_);
  if (wanted.algorithm == Algorithm::kHierarchical) {
    const std::vector<int> hosts = hosts_.empty() ? rank_.transport().hosts() : hosts_;
    encoded =
        scatters() ? scattered_count(count, hosts) : encoded_count(count, rank, hosts, 0, unit);
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

Buffer AllreduceRank::zeros(std::size_t bytes) const {
  Buffer buffer(bytes, input_.memory());
  if (bytes == 0) return buffer;
  if (input_.memory() == Memory::kDevice)
    kernels::zero_bytes(buffer.pointer(), bytes, stream_);
  else
    std::memset(buffer.pointer(), 0, bytes);
  return buffer;
}

}  // namespace tersor::bench
