// allreduce, reduce_scatter and allgather: check, prepare (or find what an equal call prepared),
// bind this call's memory, run.
#include "comm/collectives/choose.h"
#include "comm/collectives/pipeline.h"
#include "comm/tuning/automatic.h"

#include <tersor/auto.h>
#include <tersor/collectives.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>

namespace tersor {
namespace {

enum class Kind : std::uint8_t { kAllreduce, kReduceScatter, kAllgather };

constexpr std::string_view kKindNames[] = {"allreduce", "reduce_scatter", "allgather"};

/// What a prepared collective depends on: an equal call may use it again.
struct Key {
  const Transport* transport = nullptr;
  Kind kind = Kind::kAllreduce;
  std::string codec;
  Dtype dtype = Dtype::kF32;
  std::size_t count = 0;  ///< of a slot
  Reduction reduction = Reduction::kSum;
  Algorithm algorithm = Algorithm::kAuto;
  std::uint32_t parameter = 0;
  std::size_t chunk_count = 0;
  unsigned threads = 1;

  bool operator==(const Key&) const = default;
};

/// Plans, buffers and context of one shape of call.
struct Prepared {
  explicit Prepared(Key wanted) : key(std::move(wanted)), codec(make_codec(key.codec)) {}

  Key key;
  std::shared_ptr<const Codec> codec;
  Algorithm algorithm = Algorithm::kAuto;
  std::vector<Slot> slots;
  std::vector<ChunkPlan> chunks;
  ExchangeContext context;
  std::unique_ptr<Pipeline> pipeline;
};

std::uint64_t signature_of(const Prepared& prepared, const CollectiveOptions& options) {
  Signature signature;
  signature.add(static_cast<std::uint8_t>(prepared.key.kind))
      .add(options.reduction)
      .add(prepared.algorithm)
      .add(static_cast<std::uint32_t>(prepared.context.ranks))
      .add(static_cast<std::uint64_t>(options.chunk_count));
  for (const Slot& slot : prepared.slots)
    signature.add(slot.dtype)
        .add(static_cast<std::uint64_t>(slot.count))
        .add(slot.first_index)
        .add(prepared.codec->spec().text());
  return signature.value();
}

void make_slots(Prepared& prepared, int slots) {
  for (int i = 0; i < slots; ++i)
    prepared.slots.push_back({.parameter = prepared.key.parameter,
                              .count = prepared.key.count,
                              .first_index = prepared.key.count * static_cast<std::uint64_t>(i),
                              .dtype = prepared.key.dtype,
                              .codec = prepared.codec});
}

// A codec that cannot be cut chooses among all values: each rank gathers all and keeps its shard.
bool gathers_whole(const Prepared& prepared) {
  return prepared.key.kind == Kind::kReduceScatter && !prepared.codec->traits().divisible;
}

void make_plans(Prepared& prepared) {
  const PlanContext plan{prepared.slots, prepared.context.ranks, prepared.key.threads};
  if (prepared.key.kind == Kind::kAllreduce || gathers_whole(prepared)) {
    prepared.chunks = plan_cut(plan, 0, flow_of(prepared.algorithm), prepared.key.chunk_count);
  } else {
    const Flow flow = prepared.key.kind == Kind::kAllgather ? Flow::kGather : Flow::kScatter;
    prepared.chunks = plan_lanes(plan, flow, prepared.key.chunk_count);
  }
}

std::unique_ptr<Prepared> prepare(Transport& transport, Key key, const CollectiveOptions& options) {
  auto prepared = std::make_unique<Prepared>(std::move(key));
  prepared->context.rank = transport.rank();
  prepared->context.ranks = transport.ranks();
  prepared->context.name = kKindNames[static_cast<int>(prepared->key.kind)];
  const bool single = prepared->key.kind == Kind::kAllreduce || gathers_whole(*prepared);
  if (gathers_whole(*prepared)) prepared->key.count *= transport.ranks();
  make_slots(*prepared, single ? 1 : transport.ranks());
  prepared->algorithm =
      prepared->key.kind == Kind::kAllreduce
          ? choose_algorithm({prepared->codec.get(), prepared->key.dtype, prepared->key.count,
                              transport.ranks(), options.algorithm})
          : Algorithm::kOneShot;
  make_plans(*prepared);
  prepared->context.slots = prepared->slots;
  prepared->context.counters.resize(prepared->slots.size());
  prepared->context.signature = signature_of(*prepared, options);
  prepared->pipeline = std::make_unique<Pipeline>(prepared->context);
  for (const ChunkPlan& chunk : prepared->chunks) prepared->pipeline->prepare(chunk);
  if (gathers_whole(*prepared)) prepared->key.count /= transport.ranks();
  return prepared;
}

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
}

SegmentState in_place(const ValueSpan& residual) { return {residual, residual, {}, {}}; }

void check_state(const ValueSpan& residual, std::size_t count, std::string_view which) {
  if (residual.count() == count) return;
  throw InvalidArgument("the state's " + std::string(which) + " has " +
                        std::to_string(residual.count()) + " values, but this rank needs " +
                        std::to_string(count));
}

void bind_state(Prepared& prepared, const CollectiveOptions& options, std::size_t encoded) {
  if (options.state == nullptr || !prepared.codec->has_feedback()) return;
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
  if (prepared.algorithm != Algorithm::kTwoShot) return;
  Slot& slot = prepared.slots.front();
  const Range owned =
      owned_range(slot.count, prepared.context.rank, prepared.context.ranks, slot.parameter);
  check_state(state.owner_residual, owned.count, "owner_residual (see owned_count)");
  slot.owner = in_place(state.owner_residual);
  slot.owner_first = owned.first;
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

void run(Prepared& prepared, Transport& transport, const CollectiveOptions& options) {
  const auto start = Clock::now();
  const std::uint64_t sent = transport.counters().sent_bytes;
  const double wire = prepared.pipeline->wire_seconds();
  std::uint32_t tag =
      transport.reserve_tags(static_cast<std::uint32_t>(2 * prepared.chunks.size()));
  for (const ChunkPlan& chunk : prepared.chunks) {
    prepared.pipeline->submit(chunk, tag);
    tag += 2;
  }
  try {
    prepared.pipeline->finish();
  } catch (const TransportError&) {
    throw;
  } catch (const std::exception& error) {
    transport.poison(error.what());  // the others would wait for us
    throw;
  }
  advance_words(options, prepared.context.overflows);
  if (options.statistics == nullptr) return;
  fill_statistics(prepared, *options.statistics);
  options.statistics->sent_bytes = transport.counters().sent_bytes - sent;
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
    std::unique_ptr<Prepared>& place =
        options.workspace == nullptr ? own_ : options.workspace->cache().prepared;
    if (place == nullptr || !(place->key == key)) {
      place = nullptr;
      place = prepare(transport, std::move(key), options);
    }
    prepared_ = place.get();
    check_feedback(*prepared_->codec, options);
    bind_call(*prepared_, transport, options);
  }

  Prepared* operator->() { return prepared_; }
  Prepared& operator*() { return *prepared_; }

 private:
  std::unique_ptr<Prepared> own_;
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
          .threads = options.threads == nullptr ? 1 : options.threads->count()};
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
  bind_state(*call, options, gradient.count());
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
  if (gathers_whole(*call)) own.window = rank * shard.count();
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

std::size_t owned_count(std::size_t count, int rank, int ranks, std::uint32_t parameter) {
  if (ranks < 1 || rank < 0 || rank >= ranks)
    throw InvalidArgument("rank " + std::to_string(rank) + " of " + std::to_string(ranks) +
                          " does not exist");
  return owned_range(count, rank, ranks, parameter).count;
}

}  // namespace tersor
