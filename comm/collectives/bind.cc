#include "comm/collectives/bind.h"

#include <string>

namespace tersor {
namespace {

void bind_device(Prepared& prepared, Transport& transport, StreamView stream) {
  ExchangeContext& context = prepared.context;
  context.stream = stream;
  context.fault = transport.fault();
  context.in_order = prepared.chunks.size() == 1;
  // The words are in device memory: only the address is used.
  auto* words = const_cast<StateWords*>(context.words);
  context.device_overflows = words == nullptr ? nullptr : &words->overflows;
}

SegmentState both_in(const ValueSpan& residual) { return {residual, residual}; }

void check_state(const Prepared& prepared, const ValueSpan& residual, std::size_t count,
                 std::string_view which) {
  if (count != 0 && !residual.empty() && residual.memory() != prepared.key.memory)
    throw InvalidArgument("the state's " + std::string(which) + " lies " +
                          std::string(memory_text(residual.memory())) + ", but the values lie " +
                          std::string(memory_text(prepared.key.memory)));
  if (residual.count() == count) return;
  throw InvalidArgument("the state's " + std::string(which) + " has " +
                        std::to_string(residual.count()) + " values, but this rank needs " +
                        std::to_string(count));
}

int slots_of(const Prepared& prepared) { return static_cast<int>(prepared.slots.size()); }

/// True if this rank encodes a slot. A rank encodes its own slot and all added slots. The owners of
/// slots encoded in a hierarchical call have this rank's local rank.
bool encodes(const Prepared& prepared, int slot) {
  const int rank = prepared.context.rank;
  if (!prepared.is(kAdds)) return slot == rank;
  if (!prepared.by_hosts) return true;
  const HostGroups& groups = prepared.hierarchy->groups();
  return groups.local_rank(slot) == groups.local_rank(rank);
}

/// Binds the state of a collective with a single slot of all values.
void bind_only_state(Prepared& prepared, const CollectiveOptions& options) {
  Slot& slot = prepared.slots.front();
  const StateRanges ranges = state_ranges(prepared.context, slot, prepared.context.rank);
  check_state(prepared, options.state->residual, ranges.encoded.count,
              prepared.hierarchy == nullptr ? "residual" : "residual (see encoded_count)");
  slot.residual = both_in(options.state->residual);
  slot.residual_first = ranges.encoded.first;
  if (prepared.encoded != Algorithm::kTwoShot) return;
  check_state(prepared, options.state->owner_residual, ranges.owned.count(),
              "owner_residual (see owned_count)");
  slot.owner = both_in(options.state->owner_residual);
  slot.owned = ranges.owned;
}

/// Binds the state of a collective with shards as slots.
void bind_states(Prepared& prepared, const CollectiveOptions& options) {
  std::size_t encoded = 0;
  for (int slot = 0; slot < slots_of(prepared); ++slot)
    if (encodes(prepared, slot)) encoded += prepared.slots[static_cast<std::size_t>(slot)].count;
  const bool adds_first = prepared.by_hosts && prepared.is(kAdds);
  const CollectiveState& state = *options.state;
  check_state(prepared, state.residual, encoded,
              adds_first ? "residual (see scattered_count)" : "residual");
  std::size_t offset = 0;
  for (int i = 0; i < slots_of(prepared); ++i) {
    if (!encodes(prepared, i)) continue;
    Slot& slot = prepared.slots[static_cast<std::size_t>(i)];
    slot.residual = both_in(state.residual.subspan(offset, slot.count));
    offset += slot.count;
  }
}

}  // namespace

void check_taken(const Transport& transport, Memory memory, std::string_view what) {
  const TransportTraits traits = transport.traits();
  if (memory == Memory::kHost ? traits.host : traits.device) return;
  throw InvalidArgument(std::string(what) + " lies " + std::string(memory_text(memory)) +
                        ", but this transport takes " +
                        (traits.host ? "host memory" : "device memory"));
}

std::string_view memory_text(Memory memory) {
  return memory == Memory::kHost ? "on the host" : "on a device";
}

void bind_call(Prepared& prepared, Transport& transport, const CollectiveOptions& options,
               StreamView stream) {
  ExchangeContext& context = prepared.context;
  context.transport = &transport;
  context.adder = adder_of(context);
  context.seed = options.seed;
  context.step = options.step;
  context.words = options.state == nullptr ? nullptr : options.state->words;
  context.reduction = prepared.is(kAdds) ? options.reduction : Reduction::kSum;
  context.checksum = options.checksum;
  context.timeout = options.timeout;
  context.threads = options.threads;
  context.overflows = 0;
  for (SlotCounters& counters : context.counters) counters = {};
  if (context.on_device()) bind_device(prepared, transport, stream);
}

void bind_state(Prepared& prepared, const CollectiveOptions& options) {
  if (options.state == nullptr || !prepared.codec->has_feedback()) return;
  prepared.is(kOneSlot) ? bind_only_state(prepared, options) : bind_states(prepared, options);
}

// The sum of this rank's own shard goes to the output.
void bind_host_sums(Prepared& prepared, const ValueSpan& shard) {
  if (!prepared.by_hosts) return;
  const HostGroups& groups = prepared.hierarchy->groups();
  const int rank = prepared.context.rank;
  std::size_t offset = 0;
  for (const int owner : groups.owners(groups.local_rank(rank))) {
    Slot& slot = prepared.slots[static_cast<std::size_t>(owner)];
    slot.host_sum = shard;
    if (owner == rank) continue;
    slot.host_sum = {prepared.host_sums.pointer() + offset, shard.count(), shard.dtype(),
                     shard.memory()};
    offset += shard.bytes();
  }
}

}  // namespace tersor
