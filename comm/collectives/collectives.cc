// allreduce, reduce_scatter and allgather: check, prepare (or find what an equal call prepared),
// bind this call's memory, run.
#include "comm/collectives/prepared.h"
#include "comm/tuning/automatic.h"

#include <tersor/auto.h>
#include <tersor/collectives.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>

namespace tersor {
namespace {

void bind_call(Prepared& prepared, Transport& transport, const CollectiveOptions& options) {
  ExchangeContext& context = prepared.context;
  context.transport = &transport;
  context.seed = options.seed;
  context.step = options.step;
  context.words = options.state == nullptr ? nullptr : options.state->words;
  const bool mean = options.reduction == Reduction::kMean && prepared.key.kind != Kind::kAllgather;
  context.factor = mean ? 1.0f / static_cast<float>(context.ranks) : 1.0f;
  context.checksum = options.checksum;
  context.timeout = options.timeout;
  context.threads = options.threads;
  context.overflows = 0;
  for (SlotCounters& counters : context.counters) counters = {};
  if (prepared.hierarchy != nullptr) prepared.hierarchy->bind(context);
}

SegmentState in_place(const ValueSpan& residual) { return {residual, residual, {}, {}}; }

void check_state(const ValueSpan& residual, std::size_t count, std::string_view which) {
  if (residual.count() == count) return;
  throw InvalidArgument("the state's " + std::string(which) + " has " +
                        std::to_string(residual.count()) + " values, but this rank needs " +
                        std::to_string(count));
}

/// What this rank keeps of an allreduce's slot.
StateRanges allreduce_ranges(const Prepared& prepared) {
  const Slot& slot = prepared.slots.front();
  const ExchangeContext& context = prepared.context;
  if (prepared.hierarchy != nullptr)
    return prepared.hierarchy->groups().state_ranges(slot.count, context.rank, slot.parameter);
  return {{0, slot.count}, owned_range(slot.count, context.rank, context.ranks, slot.parameter)};
}

bool keeps_state(const Prepared& prepared, const CollectiveOptions& options) {
  return options.state != nullptr && prepared.codec->has_feedback();
}

void bind_allreduce_state(Prepared& prepared, const CollectiveOptions& options) {
  if (!keeps_state(prepared, options)) return;
  const StateRanges ranges = allreduce_ranges(prepared);
  Slot& slot = prepared.slots.front();
  check_state(options.state->residual, ranges.encoded.count,
              prepared.hierarchy == nullptr ? "residual" : "residual (see encoded_count)");
  slot.residual = in_place(options.state->residual);
  slot.residual_first = ranges.encoded.first;
  if (prepared.flow != Flow::kTwoShot) return;
  check_state(options.state->owner_residual, ranges.owned.count,
              "owner_residual (see owned_count)");
  slot.owner = in_place(options.state->owner_residual);
  slot.owner_first = ranges.owned.first;
}

/// Of collectives whose slots are shards.
void bind_state(Prepared& prepared, const CollectiveOptions& options, std::size_t encoded) {
  if (!keeps_state(prepared, options)) return;
  const CollectiveState& state = *options.state;
  check_state(state.residual, encoded, "residual");
  std::size_t offset = 0;
  for (Slot& slot : prepared.slots) {
    const bool encodes = prepared.key.kind != Kind::kAllgather ||
                         &slot - prepared.slots.data() == prepared.context.rank;
    if (!encodes) continue;
    slot.residual = in_place(state.residual.subspan(offset, slot.count));
    offset += slot.count;
  }
}

void advance_words(const CollectiveOptions& options, std::uint64_t overflows) {
  if (options.state == nullptr || options.state->words == nullptr) return;
  options.state->words->step += 1;
  options.state->words->overflows += overflows;
}

void fill_statistics(const Prepared& prepared, CollectiveStatistics& statistics) {
  statistics.algorithm = prepared.algorithm;
  statistics.chunks = prepared.chunks.size();
  statistics.overflows = prepared.context.overflows;
  statistics.gradient_bytes = 0;
  statistics.encode_seconds = statistics.decode_seconds = 0;
  for (const Slot& slot : prepared.slots)
    statistics.gradient_bytes += slot.count * dtype_bytes(slot.dtype);
  for (const SlotCounters& counters : prepared.context.counters) {
    statistics.encode_seconds += counters.encode_seconds;
    statistics.decode_seconds += counters.decode_seconds;
  }
}

std::uint64_t sent_bytes(const Prepared& prepared, const Transport& transport) {
  const std::uint64_t whole = transport.counters().sent_bytes;
  return prepared.hierarchy == nullptr ? whole : whole + prepared.hierarchy->sent_bytes();
}

void submit(Prepared& prepared, Transport& transport) {
  const auto chunks = static_cast<std::uint32_t>(prepared.chunks.size());
  std::uint32_t tag = transport.reserve_tags(kTagsOfRoute * chunks);
  for (const Route& chunk : prepared.chunks) {
    prepared.pipeline->submit(chunk, tag);
    tag += kTagsOfRoute;
  }
}

void run(Prepared& prepared, Transport& transport, const CollectiveOptions& options) {
  const auto start = Clock::now();
  const std::uint64_t sent = sent_bytes(prepared, transport);
  const double wire = prepared.pipeline->wire_seconds();
  submit(prepared, transport);
  try {
    prepared.pipeline->finish();
  } catch (const TransportError&) {
    throw;
  } catch (const std::exception& error) {
    transport.poison(error.what());  // the others would wait for us
    throw;
  }
  if (prepared.hierarchy != nullptr) prepared.hierarchy->collect(prepared.context);
  advance_words(options, prepared.context.overflows);
  if (options.statistics == nullptr) return;
  fill_statistics(prepared, *options.statistics);
  options.statistics->sent_bytes = sent_bytes(prepared, transport) - sent;
  options.statistics->wire_seconds = prepared.pipeline->wire_seconds() - wire;
  options.statistics->seconds = seconds_since(start);
}

void check_host(const ConstValueSpan& span, std::string_view name) {
  if (span.memory() != Memory::kHost)
    throw InvalidArgument(std::string(name) +
                          " lies on a device, but this transport takes host memory");
  if (!is_gradient_dtype(span.dtype()))
    throw InvalidArgument(std::string(name) + " is " + std::string(dtype_name(span.dtype())) +
                          "; collectives take f32, bf16 and f16");
}

void check_shards(const ConstValueSpan& all, const ConstValueSpan& shard, int ranks) {
  if (all.dtype() != shard.dtype())
    throw InvalidArgument("the shard is " + std::string(dtype_name(shard.dtype())) +
                          ", but the whole is " + std::string(dtype_name(all.dtype())));
  if (all.count() == shard.count() * static_cast<std::size_t>(ranks)) return;
  throw InvalidArgument(std::to_string(ranks) + " shards of " + std::to_string(shard.count()) +
                        " values make " + std::to_string(shard.count() * ranks) + ", not the " +
                        std::to_string(all.count()) + " that were given");
}

// One rank: nothing is encoded, as nothing is sent.
void copy_values(const ConstValueSpan& from, const ValueSpan& to) {
  if (from.bytes() != 0) std::memmove(to.pointer(), from.pointer(), from.bytes());
}

// `+ef` without a state is found here and not in the first encode, so that nothing was sent yet.
void check_feedback(const Codec& codec, const CollectiveOptions& options) {
  if (codec.has_feedback() && options.state == nullptr)
    throw InvalidArgument("codec " + codec.spec().text() +
                          " asks for error feedback: pass CollectiveOptions::state, use a "
                          "GradientReducer, or leave out +ef");
}

}  // namespace

struct CollectiveWorkspace::Cache {
  KnownHierarchy hierarchy;
  std::unique_ptr<Prepared> prepared;
};

CollectiveWorkspace::CollectiveWorkspace() : cache_(std::make_unique<Cache>()) {}
CollectiveWorkspace::~CollectiveWorkspace() = default;
CollectiveWorkspace::CollectiveWorkspace(CollectiveWorkspace&&) noexcept = default;
CollectiveWorkspace& CollectiveWorkspace::operator=(CollectiveWorkspace&&) noexcept = default;

namespace {

/// The prepared collective of a call: the workspace's, or one that lives as long as this lease.
class Lease {
 public:
  Lease(Transport& transport, Key key, const CollectiveOptions& options) {
    CollectiveWorkspace::Cache& cache =
        options.workspace == nullptr ? own_ : options.workspace->cache();
    if (cache.prepared == nullptr || !(cache.prepared->key == key)) {
      cache.prepared = nullptr;
      cache.prepared = prepare(transport, std::move(key), options, cache.hierarchy);
    }
    prepared_ = cache.prepared.get();
    check_feedback(*prepared_->codec, options);
    bind_call(*prepared_, transport, options);
  }

  Prepared* operator->() { return prepared_; }
  Prepared& operator*() { return *prepared_; }

 private:
  CollectiveWorkspace::Cache own_;
  Prepared* prepared_;
};

Key make_key(const Transport& transport, Kind kind, const ConstValueSpan& slot,
             const CollectiveOptions& options) {
  return {.transport = &transport,
          .kind = kind,
          .codec = options.codec,
          .dtype = slot.dtype(),
          .count = slot.count(),
          .reduction = options.reduction,
          .algorithm = options.algorithm,
          .parameter = options.parameter,
          .chunk_count = options.chunk_count,
          .threads = options.threads == nullptr ? 1 : options.threads->count(),
          .hosts = {options.hosts.begin(), options.hosts.end()},
          .host_codec = options.host_codec};
}

}  // namespace

void allreduce(Transport& transport, ValueSpan gradient, const CollectiveOptions& options,
               StreamView) {
  check_host(gradient, "the gradient");
  if (options.codec == kAutoCodec) return allreduce_automatically(transport, gradient, options);
  Lease call(transport, make_key(transport, Kind::kAllreduce, gradient, options), options);
  if (transport.ranks() == 1) return;
  Slot& slot = call->slots.front();
  slot.input = gradient;
  slot.output = gradient;
  bind_allreduce_state(*call, options);
  run(*call, transport, options);
}

void reduce_scatter(Transport& transport, ConstValueSpan input, ValueSpan shard,
                    const CollectiveOptions& options, StreamView) {
  refuse_automatic(options, "reduce_scatter");
  check_host(input, "the input");
  check_host(shard, "the shard");
  check_shards(input, shard, transport.ranks());
  Lease call(transport, make_key(transport, Kind::kReduceScatter, shard, options), options);
  if (transport.ranks() == 1) return copy_values(input, shard);
  for (std::size_t i = 0; i < call->slots.size(); ++i)
    call->slots[i].input = input.subspan(i * call->slots[i].count, call->slots[i].count);
  const auto rank = static_cast<std::size_t>(transport.rank());
  Slot& own = call->slots.size() == 1 ? call->slots.front() : call->slots[rank];
  own.output = shard;
  if (call->gathers_whole()) own.window = rank * shard.count();
  bind_state(*call, options, input.count());
  run(*call, transport, options);
}

void allgather(Transport& transport, ConstValueSpan shard, ValueSpan output,
               const CollectiveOptions& options, StreamView) {
  refuse_automatic(options, "allgather");
  check_host(shard, "the shard");
  check_host(output, "the output");
  check_shards(output, shard, transport.ranks());
  Lease call(transport, make_key(transport, Kind::kAllgather, shard, options), options);
  if (transport.ranks() == 1) return copy_values(shard, output);
  for (std::size_t i = 0; i < call->slots.size(); ++i)
    call->slots[i].output = output.subspan(i * shard.count(), shard.count());
  call->slots[static_cast<std::size_t>(transport.rank())].input = shard;
  bind_state(*call, options, shard.count());
  run(*call, transport, options);
}

}  // namespace tersor
