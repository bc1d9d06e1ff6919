#include "comm/calls/arguments.h"

#include "codecs/apart.h"
#include "comm/collectives/bind.h"

#include <string>

namespace tersor {
namespace {

/// Throws InvalidArgumentError unless both spans have equal dtypes and memories.
void check_same_type(const ConstValueSpan& one, std::string_view name, const ConstValueSpan& other,
                     std::string_view other_name) {
  const std::string label(name), other_label = ", but " + std::string(other_name);
  if (one.memory() != other.memory())
    throw InvalidArgumentError(label + " is " + std::string(memory_text(one.memory())) +
                               other_label + " is " + std::string(memory_text(other.memory())));
  if (one.dtype() != other.dtype())
    throw InvalidArgumentError(label + " is " + std::string(dtype_name(one.dtype())) + other_label +
                               " is " + std::string(dtype_name(other.dtype())));
}

/// Like `check_same_type`, for a shard and the whole with one shard per rank.
void check_shards(std::string_view name, const ConstValueSpan& all, const ConstValueSpan& shard,
                  int ranks) {
  if (!all.empty()) check_same_type(shard, "the shard", all, name);
  if (all.count() == shard.count() * static_cast<std::size_t>(ranks)) return;
  throw InvalidArgumentError(std::string(name) + " has " + std::to_string(all.count()) +
                             " values, but " + std::to_string(ranks) + " shards of " +
                             std::to_string(shard.count()) + " values need " +
                             std::to_string(shard.count() * ranks));
}

void check_spans(const Call& call, const CollectiveOptions& options) {
  const Transport& transport = call.transport;
  const CallInfo& info = info_of(call.kind);
  reject_auto_codec(options, info.name);
  if (has(call.kind, kRooted) && (call.root < 0 || call.root >= transport.ranks()))
    throw InvalidArgumentError("root is " + std::to_string(call.root) + ": give a rank from 0 to " +
                               std::to_string(transport.ranks() - 1));
  if (!has(call.kind, kFeedback)) reject_feedback(options, info.name);
  if (!info.input.empty()) check_span(transport, call.input, info.input);
  if (!info.output.empty()) check_span(transport, call.output, info.output);
  if (call.kind == CallKind::kAllToAll)
    return check_same_type(call.output, "the output", call.input, "the input");
  if (!call.has_whole()) return;
  if (has(call.kind, kWholeInput))
    return check_shards("the input", call.input, call.output, transport.ranks());
  check_shards("the output", call.output, call.input,
               has(call.kind, kWholeOutput) ? transport.ranks() : 1);
}

/// Throws InvalidArgumentError for overlapping spans. Valid are: equal input and output, a shard at
/// this rank's position in the whole, or disjoint spans. A state must not overlap either span.
void check_overlap(const Call& call, const CollectiveOptions& options) {
  const bool whole_input = has(call.kind, kWholeInput);
  ConstValueSpan input = call.input, output = call.output;
  if (!call.has_whole()) (whole_input ? input : output) = {};
  const ConstValueSpan &whole = whole_input ? input : output, &shard = whole_input ? output : input;
  const std::size_t shard_index = shard.count() == whole.count() ? 0 : call.transport.rank();
  const bool in_place =
      !whole.empty() && shard.pointer() == whole.pointer() + shard_index * shard.bytes();
  if (in_place) (whole_input ? output : input) = {};
  encoding::CallMemory memory;
  memory.read("the input", input.pointer(), input.bytes());
  memory.write("the output", output.pointer(), output.bytes());
  if (options.state != nullptr) {
    const CollectiveState& state = *options.state;
    memory.write("the residual", state.residual.pointer(), state.residual.bytes());
    memory.write("the owner's residual", state.owner_residual.pointer(),
                 state.owner_residual.bytes());
  }
  if (const std::string overlap = memory.overlap(); !overlap.empty())
    throw InvalidArgumentError(overlap);
}

}  // namespace

void check_call(const Call& call, const CollectiveOptions& options) {
  check_spans(call, options);
  check_overlap(call, options);
}

void check_span(const Transport& transport, const ConstValueSpan& span, std::string_view name) {
  check_memory_supported(transport, span.memory(), name);
  if (!is_gradient_dtype(span.dtype()))
    throw InvalidArgumentError(std::string(name) + " is " + std::string(dtype_name(span.dtype())) +
                               "; collectives take f32, bf16 and f16");
}

void reject_feedback(const CollectiveOptions& options, std::string_view operation) {
  if (parse_spec(options.codec).feedback == Feedback::kNone) return;
  throw InvalidArgumentError("codec " + options.codec + " asks for error feedback, but " +
                             std::string(operation) + " sends values once: leave out +ef");
}

CallKey make_key(const Call& call, const CollectiveOptions& options) {
  const ConstValueSpan param = call.param();
  return {
      .transport = &call.transport,
      .kind = call.kind,
      .root = call.root,
      .values = {param.count(), param.dtype(), param.memory(), options.parameter, options.order},
      .codec = options.codec,
      .reduction = options.reduction,
      .algorithm = options.algorithm,
      .chunk_count = chunk_count_of(call.transport, options.chunk_count),
      .threads = options.threads == nullptr ? 1 : options.threads->count(),
      .grid = {.hosts = {options.hosts.begin(), options.hosts.end()},
               .dims = {options.dims.begin(), options.dims.end()},
               .error_growth = options.error_growth,
               .host_codec = options.host_codec}};
}

}  // namespace tersor
