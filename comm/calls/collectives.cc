// The collectives: check, prepare (or reuse a prepared equal call), bind this call's memory, run.
#include "comm/calls/arguments.h"
#include "comm/collectives/bind.h"
#include "comm/collectives/prepared.h"
#include "comm/collectives/splits.h"
#include "kernels/device/device.h"
#include "kernels/device/device_memory.h"
#include "kernels/device/marks.h"

#include <tersor/auto.h>
#include <tersor/collectives.h>

#include <cstring>
#include <utility>

namespace tersor {
namespace {

void advance_words(const ExchangeContext& context, const CollectiveOptions& options) {
  if (options.state == nullptr || options.state->words == nullptr) return;
  if (context.on_device())
    return kernels::advance_step(options.state->words, nullptr, context.device.stream);
  options.state->words->step += 1;
  options.state->words->overflows += context.overflows;
}

void fill_statistics(const PreparedCall& prepared, CollectiveStatistics& statistics) {
  statistics.algorithm = prepared.algorithm();
  statistics.chunks = prepared.chunks.size();
  statistics.overflows = prepared.context.overflows;
  statistics.gradient_bytes = 0;
  statistics.encode_seconds = statistics.decode_seconds = 0;
  for (const ExchangeParameter& param : prepared.own_params())
    statistics.gradient_bytes += param.count * dtype_bytes(param.dtype);
  for (const ParamCounters& counters : prepared.context.counters) {
    statistics.encode_seconds += counters.encode_seconds;
    statistics.decode_seconds += counters.decode_seconds;
  }
}

// A call under capture has not reached any rank: the call ends here, and the transport stays
// usable.
bool cancel_captured_call(const ExchangeContext& context, Transport& transport) {
  if (!context.on_device() || kernels::capture_of(context.device.stream) == 0) return false;
  transport.end(bracket_of(context));
  return true;
}

void exchange(PreparedCall& prepared, Transport& transport, const CollectiveOptions& options) {
  const ExchangeContext& context = prepared.context;
  if (context.on_device()) transport.begin(bracket_of(context));
  try {
    for (const ChunkPlan& chunk : prepared.chunks) prepared.pipeline->submit(chunk);
    prepared.pipeline->finish();
    advance_words(context, options);
    if (context.on_device()) transport.end(bracket_of(context));
  } catch (const TransportError&) {
    throw;
  } catch (const InvalidArgumentError& error) {
    if (!cancel_captured_call(context, transport)) transport.abort(error.what());
    throw;
  } catch (const std::exception& error) {
    transport.abort(error.what());  // the others would wait for this rank
    throw;
  }
}

void run(PreparedCall& prepared, Transport& transport, const CollectiveOptions& options) {
  const auto start = Clock::now();
  const std::uint64_t sent = sent_bytes(prepared.context);
  const double wire = prepared.pipeline->wire_seconds();
  exchange(prepared, transport, options);
  if (options.statistics == nullptr) return;
  fill_statistics(prepared, *options.statistics);
  options.statistics->sent_bytes = sent_bytes(prepared.context) - sent;
  options.statistics->wire_seconds = prepared.pipeline->wire_seconds() - wire;
  options.statistics->seconds = seconds_since(start);
}

// A single rank sends nothing, so nothing is encoded.
void copy_values(const ConstValueSpan& from, const ValueSpan& to, StreamView stream) {
  if (from.pointer() == to.pointer()) return;
  if (from.memory() == Memory::kDevice)
    return kernels::copy_bytes(to.pointer(), from.pointer(), from.bytes(), stream);
  if (from.bytes() != 0) std::memmove(to.pointer(), from.pointer(), from.bytes());
}

// Reports `+ef` without a state before the first encode and before any message.
void check_feedback(const Codec& codec, const CollectiveOptions& options) {
  if (codec.has_feedback() && options.state == nullptr)
    throw InvalidArgumentError("codec " + codec.spec().text() +
                               " asks for error feedback: pass a FeedbackState as state, "
                               "use a GradientReducer, or leave out +ef");
}

}  // namespace

struct CollectiveWorkspace::Cache {
  HierarchyCache hierarchy;
  std::unique_ptr<PreparedCall> prepared;
};

CollectiveWorkspace::CollectiveWorkspace() : cache_(std::make_unique<Cache>()) {}
CollectiveWorkspace::~CollectiveWorkspace() = default;
CollectiveWorkspace::CollectiveWorkspace(CollectiveWorkspace&&) noexcept = default;
CollectiveWorkspace& CollectiveWorkspace::operator=(CollectiveWorkspace&&) noexcept = default;

namespace {

bool is_captured(const CallKey& key, StreamView stream) {
  return key.values.memory == Memory::kDevice && kernels::capture_of(stream) != 0;
}

// Preparing allocates and waits for other ranks. Both would invalidate a capture.
void check_capture(const CallKey& key, StreamView stream) {
  if (is_captured(key, stream))
    throw InvalidArgumentError(
        "the stream is being captured, but no buffers are prepared for this call: pass a "
        "CollectiveWorkspace that outlives the graph, and make an equal call before the capture");
}

/// The prepared collective of a call: in the workspace of the options, or in `own`.
PreparedCall& prepared_call(CollectiveWorkspace::Cache& own, Transport& transport, CallKey key,
                            const CollectiveOptions& options, StreamView stream) {
  auto& [hierarchy, prepared] = options.workspace == nullptr ? own : options.workspace->cache();
  if (prepared == nullptr || !(prepared->key == key)) {
    check_capture(key, stream);
    prepared = nullptr;
    prepared = prepare(transport, std::move(key), options, hierarchy);
  }
  check_feedback(*prepared->codec, options);
  bind_call(*prepared, transport, options, stream);
  return *prepared;
}

// The whole input or output holds the shards contiguously.
void bind_values(PreparedCall& prepared, const Call& call) {
  const bool of_input = has(call.kind, kWholeInput), of_output = has(call.kind, kWholeOutput);
  std::vector<ParameterBinding>& bindings = prepared.bindings;
  for (std::size_t i = 0; call.has_whole() && i < bindings.size(); ++i) {
    const std::size_t count = prepared.params[i].count;
    if (of_input) bindings[i].input = call.input.subspan(i * count, count);
    if (of_output) bindings[i].output = call.output.subspan(i * count, count);
  }
  const auto rank = static_cast<std::size_t>(call.transport.rank());
  ParameterBinding& own = bindings.size() == 1 ? bindings.front() : bindings[rank];
  if (!of_input) own.input = call.input;
  if (!of_output) own.output = call.output;
  if (call.kind != CallKind::kReduceScatter) return;
  if (prepared.gathers_whole()) own.window = rank * call.output.count();
  bind_host_sums(prepared, call.output);
}

void run_call(const Call& call, const CollectiveOptions& options, StreamView stream) {
  check_call(call, options);
  CollectiveWorkspace::Cache own;
  PreparedCall& prepared =
      prepared_call(own, call.transport, make_key(call, options), options, stream);
  if (call.transport.ranks() == 1) return copy_values(call.input, call.output, stream);
  bind_values(prepared, call);
  bind_state(prepared, options);
  run(prepared, call.transport, options);
}

}  // namespace

void allreduce(Transport& transport, ValueSpan gradient, const CollectiveOptions& options,
               StreamView stream) {
  if (options.codec == kAutoCodec) return allreduce_auto(transport, gradient, options, stream);
  run_call({transport, CallKind::kAllreduce, gradient, gradient}, options, stream);
}

void reduce_scatter(Transport& transport, ConstValueSpan input, ValueSpan shard,
                    const CollectiveOptions& options, StreamView stream) {
  run_call({transport, CallKind::kReduceScatter, input, shard}, options, stream);
}

void allgather(Transport& transport, ConstValueSpan shard, ValueSpan output,
               const CollectiveOptions& options, StreamView stream) {
  run_call({transport, CallKind::kAllgather, shard, output}, options, stream);
}

void broadcast(Transport& transport, ValueSpan values, int root, const CollectiveOptions& options,
               StreamView stream) {
  run_call({transport, CallKind::kBroadcast, values, values, root}, options, stream);
}

void reduce(Transport& transport, ConstValueSpan input, ValueSpan output, int root,
            const CollectiveOptions& options, StreamView stream) {
  const bool is_root = transport.rank() == root;
  run_call({transport, CallKind::kReduce, input, is_root ? output : ValueSpan{}, root}, options,
           stream);
}

void gather(Transport& transport, ConstValueSpan shard, ValueSpan output, int root,
            const CollectiveOptions& options, StreamView stream) {
  run_call({transport, CallKind::kGather, shard, output, root}, options, stream);
}

void scatter(Transport& transport, ConstValueSpan input, ValueSpan shard, int root,
             const CollectiveOptions& options, StreamView stream) {
  run_call({transport, CallKind::kScatter, input, shard, root}, options, stream);
}

void all_to_all(Transport& transport, ConstValueSpan input, ValueSpan output, std::size_t columns,
                const Splits& splits, const CollectiveOptions& options, StreamView stream) {
  const Call call{transport, CallKind::kAllToAll, input, output};
  check_call(call, options);
  Rows rows = rows_of(transport, input, output, columns, splits);
  CallKey key = make_key(call, options);
  key.values.count = columns;
  CollectiveWorkspace::Cache own;
  PreparedCall& prepared = prepared_call(own, transport, key, options, stream);
  if (transport.ranks() == 1) return copy_values(input, output, stream);
  if (!is_captured(key, stream)) receive_forwarded_counts(prepared, transport, rows);
  if (!fits_plan(prepared, rows)) {
    check_capture(key, stream);
    replan(prepared, rows);
  }
  bind_rows(prepared, input, output);
  run(prepared, transport, options);
}

}  // namespace tersor
