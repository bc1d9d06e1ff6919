// Implements allreduce_rank.h and measure_allreduce.

#include "bench/allreduce_rank.h"

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

AllreduceResult measure_rank(const AllreduceCase& wanted, const RankGradients& gradients,
                             Rank& rank) {
  AllreduceRank caller(wanted, gradients.of(rank.index()), rank);
  while (!caller.settled()) time_iteration(caller, rank);
  time_iteration(caller, rank);
  caller.gather();
  const double error = check_reduced(gradients, rank, caller.codec(), caller.gradient());
  return {time_iterations(caller, rank, wanted.iterations), caller.codec(), error,
          caller.explanation()};
}

}  // namespace

AllreduceResult measure_allreduce(Fleet& fleet, const AllreduceCase& wanted,
                                  const RankGradients& gradients) {
  return measure_on(fleet, [&](Rank& rank) { return measure_rank(wanted, gradients, rank); });
}

AllreduceRank::AllreduceRank(const AllreduceCase& wanted, ConstValueSpan input, Rank& rank,
                             StreamView stream)
    : rank_(rank),
      by_library_(wanted.by_library),
      collective_(wanted.collective),
      input_(input),
      stream_(stream),
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

bool AllreduceRank::settled() const {
  return tuner_ == nullptr || tuner_->settled(input_.dtype(), input_.count());
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

void AllreduceRank::gather() {
  if (scatters()) allgather(rank_.transport(), shard(), gradient(), {.codec = "none"}, stream_);
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
