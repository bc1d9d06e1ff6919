#include "comm/collectives/bind.h"

#include "comm/transport/arguments.h"

#include <string>

namespace tersor {
namespace {

void bind_device(PreparedCall& prepared, Transport& transport, StreamView stream) {
  ExchangeContext& context = prepared.context;
  context.device.stream = stream;
  context.device.fault = transport.fault();
  context.device.in_order = prepared.chunks.size() == 1;
  // The words are in device memory: only the address is used.
  auto* words = const_cast<StateWords*>(context.call.words);
  context.device.overflows = words == nullptr ? nullptr : &words->overflows;
}

SegmentState both_in(const ValueSpan& residual) { return {residual, residual}; }

void check_state(const PreparedCall& prepared, const ValueSpan& residual, std::size_t count,
                 std::string_view which) {
  if (count != 0 && !residual.empty() && residual.memory() != prepared.key.values.memory)
    throw InvalidArgumentError(
        "the state's " + std::string(which) + " is " + std::string(memory_text(residual.memory())) +
        ", but the values are " + std::string(memory_text(prepared.key.values.memory)));
  if (residual.count() == count) return;
  throw InvalidArgumentError("the state's " + std::string(which) + " has " +
                             std::to_string(residual.count()) + " values, but this rank needs " +
                             std::to_string(count));
}

/// The parameters this rank encodes, ascending: its own parameter, or all added parameters. In a
/// hierarchical call, the owners of added parameters have this rank's local rank.
std::vector<int> encoded_params(const PreparedCall& prepared) {
  const int rank = prepared.context.ranks.rank;
  if (!prepared.is(kReduces)) return {rank};
  if (!prepared.hierarchical) return all_ranks(static_cast<int>(prepared.params.size()));
  const HostGroups& groups = prepared.hierarchy->groups();
  return groups.owners(groups.local_rank(rank));
}

/// Binds the state of a collective with a single parameter of all values.
void bind_only_state(PreparedCall& prepared, const CollectiveOptions& options) {
  const ExchangeParameter& param = prepared.params.front();
  ParameterFeedback& feedback = prepared.feedback.front();
  const StateRanges ranges =
      state_ranges(prepared.context.ranks, param, prepared.context.ranks.rank);
  check_state(prepared, options.state->residual, ranges.encoded.count,
              prepared.hierarchy == nullptr ? "residual" : "residual (see encoded_count)");
  feedback.sender = both_in(options.state->residual);
  feedback.sender_first = ranges.encoded.first;
  if (prepared.encoded != Algorithm::kTwoShot) return;
  check_state(prepared, options.state->owner_residual, ranges.owned.count(),
              "owner_residual (see owned_count)");
  feedback.owner = both_in(options.state->owner_residual);
  feedback.owned = ranges.owned;
}

/// Binds the state of a collective with shards of equal counts as parameters.
void bind_states(PreparedCall& prepared, const CollectiveOptions& options) {
  const std::vector<int> encoded = encoded_params(prepared);
  const std::size_t count = prepared.params.front().count;
  const bool adds_first = prepared.hierarchical && prepared.is(kReduces);
  const ValueSpan& residual = options.state->residual;
  check_state(prepared, residual, encoded.size() * count,
              adds_first ? "residual (see scattered_count)" : "residual");
  for (std::size_t i = 0; i < encoded.size(); ++i)
    prepared.feedback[static_cast<std::size_t>(encoded[i])].sender =
        both_in(residual.subspan(i * count, count));
}

}  // namespace

void check_memory_supported(const Transport& transport, Memory memory, std::string_view what) {
  const TransportTraits traits = transport.traits();
  if (memory == Memory::kHost ? traits.host : traits.device) return;
  throw InvalidArgumentError(std::string(what) + " is " + std::string(memory_text(memory)) +
                             ", but this transport takes " +
                             (traits.host ? "host memory" : "device memory"));
}

std::string_view memory_text(Memory memory) {
  return memory == Memory::kHost ? "on the host" : "on a device";
}

void bind_call(PreparedCall& prepared, Transport& transport, const CollectiveOptions& options,
               StreamView stream) {
  ExchangeContext& context = prepared.context;
  context.transport = &transport;
  context.sum_transport = sum_transport_of(context);
  context.call.seed = options.seed;
  context.call.step = options.step;
  context.call.words = options.state == nullptr ? nullptr : options.state->words;
  context.call.reduction = prepared.is(kReduces) ? options.reduction : Reduction::kSum;
  context.call.checksum = options.checksum;
  context.call.timeout = options.timeout;
  context.threads = options.threads;
  context.overflows = 0;
  for (ParamCounters& counters : context.counters) counters = {};
  if (context.on_device()) bind_device(prepared, transport, stream);
}

void bind_state(PreparedCall& prepared, const CollectiveOptions& options) {
  if (options.state == nullptr || !prepared.codec->has_feedback()) return;
  prepared.is(kOneParam) ? bind_only_state(prepared, options) : bind_states(prepared, options);
}

// The sum of this rank's own shard goes to the output.
void bind_host_sums(PreparedCall& prepared, const ValueSpan& shard) {
  if (!prepared.hierarchical) return;
  const HostGroups& groups = prepared.hierarchy->groups();
  const int rank = prepared.context.ranks.rank;
  std::size_t offset = 0;
  for (const int owner : groups.owners(groups.local_rank(rank))) {
    ValueSpan& host_sum = prepared.bindings[static_cast<std::size_t>(owner)].host_sum;
    host_sum = shard;
    if (owner == rank) continue;
    host_sum = {prepared.host_sums.pointer() + offset, shard.count(), shard.dtype(),
                shard.memory()};
    offset += shard.bytes();
  }
}

}  // namespace tersor
