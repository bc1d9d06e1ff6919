// The public functions of a codec: check all arguments once, then call the codec's virtual
// function.

#include <tersor/codec.h>

#include "codecs/checks.h"

#include <tersor/error.h>

#include <limits>

namespace tersor {
namespace {

using namespace encoding;

unsigned threads_of(const Execution& execution) {
  return execution.threads == nullptr ? 1 : execution.threads->count();
}

// Larger sizes in bytes would overflow.
constexpr std::size_t kMaxValues = std::size_t{1} << 48;

void check_request(const Codec& codec, const PlanRequest& request) {
  check_memory(codec, request.memory);
  if (!is_gradient_dtype(request.dtype))
    throw InvalidArgumentError("gradients are f32, bf16 or f16, not " +
                               std::string(dtype_name(request.dtype)));
  if (request.contributions == 0) throw InvalidArgumentError("contributions is 0: give at least 1");
  if (request.segments.size() > std::numeric_limits<std::uint32_t>::max())
    throw InvalidArgumentError("a frame holds at most 2^32 - 1 segments, not " +
                               std::to_string(request.segments.size()));
  std::size_t values = 0;
  for (const Segment& segment : request.segments) {
    if (segment.count > kMaxValues - values)
      throw InvalidArgumentError("a frame holds at most 2^48 values");
    values += segment.count;
  }
}

/// Returns the checked request of a call's plan.
template <typename Call>
PlanRequest checked(const Codec& codec, const Call& call, Dtype dtype, std::size_t contributions) {
  const PlanRequest request{.segments = call.segments,
                            .dtype = dtype,
                            .contributions = contributions,
                            .memory = memory_of(call),
                            .threads = threads_of(call.execution)};
  check_request(codec, request);
  return request;
}

/// Also checks for parallel lists and readable values.
PlanRequest checked(const Codec& codec, const EncodeCall& call) {
  return checked(codec, call, check_values(codec, call.segments, call.gradients),
                 call.contributions);
}

PlanRequest checked(const Codec& codec, const DecodeCall& call, std::size_t contributions) {
  return checked(codec, call, check_outputs(codec, call), contributions);
}

}  // namespace

Plan Codec::plan(const PlanRequest& request) const {
  check_request(*this, request);
  return {plan_sizes(request), plan_rounds(request)};
}

void Codec::encode(const EncodeCall& call, ByteSpan frame) const {
  const PlanSizes sizes = plan_sizes(checked(*this, call));
  check_states(*this, call);
  check_execution(*this, sizes, call.execution);
  check_frame_space(*this, sizes, frame);
  check_one_memory(*this, call, frame.first(sizes.frame_bytes));
  do_encode(call, frame.first(sizes.frame_bytes));
}

void Codec::decode(const DecodeCall& call) const {
  check_frame_list(*this, call.frames);
  const PlanRequest request = checked(*this, call, call.frames.size());
  check_execution(*this, plan_sizes(request), call.execution);
  check_one_memory(*this, call);
  do_decode(call);
}

void Codec::reduce(const ReduceCall& call, ByteSpan frame) const {
  check_frame_list(*this, call.frames);
  const PlanRequest request = checked(*this, call, call.dtype, call.frames.size());
  PlanSizes sizes = plan_sizes(request);
  if (&results() != this) sizes.frame_bytes = results().plan_sizes(request).frame_bytes;
  check_states(*this, call);
  check_execution(*this, sizes, call.execution);
  check_frame_space(*this, sizes, frame);
  check_one_memory(*this, call, frame.first(sizes.frame_bytes));
  do_reduce(call, frame.first(sizes.frame_bytes));
}

void Codec::encode_native(const EncodeCall& call, float factor, ValueSpan values) const {
  const PlanSizes sizes = plan_sizes(checked(*this, call));
  check_states(*this, call);
  check_memories(*this, call.segments, call.memories);
  check_execution(*this, sizes, call.execution);
  check_one_memory(*this, call, {});
  check_one_memory(*this, memory_of(call), values);
  do_encode_native(call, factor, values);
}

void Codec::decode_native(const DecodeCall& call, ConstValueSpan values) const {
  const PlanRequest request = checked(*this, call, call.contributions);
  check_memories(*this, call.segments, call.memories);
  check_execution(*this, plan_sizes(request), call.execution);
  check_one_memory(*this, call);
  check_one_memory(*this, memory_of(call), values);
  do_decode_native(call, values);
}

void Codec::absorb(const DecodeCall& call, ConstValueSpan values) const {
  const PlanRequest request = checked(*this, call, call.contributions);
  check_execution(*this, plan_sizes(request), call.execution);
  check_one_memory(*this, call);
  if (!values.empty()) check_one_memory(*this, memory_of(call), values);
  do_absorb(call, values);
}

}  // namespace tersor
