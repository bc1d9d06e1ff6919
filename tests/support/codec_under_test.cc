// See codec_under_test.h.

#include "tests/support/codec_under_test.h"

#include "tests/support/guarded.h"
#include "tests/support/test_device.h"

#include <cstring>
#include <optional>
#include <vector>

namespace tersor::test {
namespace {

using Use = TestDevice::Use;

bool is_on_device(Memory memory) { return memory == Memory::kDevice; }

/// An object in device memory.
template <typename T>
class OnDevice {
 public:
  explicit OnDevice(const T& value) : bytes_(sizeof(T), 0, Memory::kDevice) {
    std::memcpy(bytes_.span().data(), &value, sizeof value);
    test_device()->prepare(bytes_.span().data(), sizeof value, Use::kInput);
  }
  T* pointer() { return reinterpret_cast<T*>(bytes_.span().data()); }
  T value() {
    T copy;
    std::memcpy(&copy, pointer(), sizeof copy);
    return copy;
  }

 private:
  GuardedBytes bytes_;
};

void prepare(const std::byte* begin, std::size_t bytes, Use use) {
  if (bytes != 0) test_device()->prepare(begin, bytes, use);
}
template <typename Span>
void prepare(const Span& span, Use use) {
  if constexpr (requires { span.pointer(); })
    prepare(span.pointer(), span.bytes(), use);
  else
    prepare(span.data(), span.size(), use);
}

void prepare_states(std::span<const SegmentState> states) {
  for (const SegmentState& state : states) {
    prepare(state.residual_out, Use::kOutput);
    prepare(state.residual_in, Use::kInput);
  }
}

void prepare_memories(std::span<const SegmentMemory> memories) {
  for (const SegmentMemory& memory : memories) {
    prepare(memory.out, Use::kOutput);
    prepare(memory.in, Use::kInput);
  }
}

/// Device copies of the call's parts stored on the host.
class DeviceParts {
 public:
  template <typename Call>
  explicit DeviceParts(Call& call) {
    call.execution.stream = test_device()->stream();
    call.execution.memory = Memory::kDevice;
    if (call.execution.fault == nullptr)
      call.execution.fault = fault_.emplace(FrameFault{}).pointer();
    prepare(call.execution.workspace, Use::kOutput);
    copy_active(call);
  }

  template <typename Call>
  void copy_words(Call& call) {
    const bool in_place = call.words == call.words_out;
    if (call.words != nullptr) call.words = words_.emplace(*call.words).pointer();
    if (call.words_out == nullptr) return;
    host_words_ = call.words_out;
    if (!in_place) next_words_.emplace(StateWords{});
    call.words_out = (in_place ? words_ : next_words_)->pointer();
    if (!in_place)
      prepare(reinterpret_cast<const std::byte*>(call.words_out), sizeof(StateWords), Use::kOutput);
  }

  /// Waits for the device and copies the results back.
  void finish() {
    test_device()->synchronize();
    if (host_words_ != nullptr) *host_words_ = (next_words_ ? next_words_ : words_)->value();
    if (fault_) throw_if_faulty(fault_->value());
  }

 private:
  template <typename Call>
  void copy_active(Call& call) {
    segments_.assign(call.segments.begin(), call.segments.end());
    active_.reserve(segments_.size());
    for (Segment& segment : segments_)
      if (segment.active != nullptr)
        segment.active = active_.emplace_back(*segment.active).pointer();
    call.segments = segments_;
  }

  std::optional<OnDevice<FrameFault>> fault_;
  std::optional<OnDevice<StateWords>> words_, next_words_;
  StateWords* host_words_ = nullptr;
  std::vector<Segment> segments_;
  std::vector<OnDevice<std::uint32_t>> active_;
};

Memory memory_of(const ConstValueSpan& span) { return span.memory(); }
Memory memory_of(const SegmentState& state) { return state.residual_in.memory(); }

/// Decides by the memory of the spans or, without spans, by the execution. Programs without a
/// device under test make host calls only.
template <typename Spans>
bool is_device_call(const Spans& spans, const Execution& execution) {
  if (test_device() == nullptr) return false;
  return is_on_device(spans.empty() ? execution.memory : memory_of(spans.front()));
}

void prepare_frames(std::span<const ConstByteSpan> frames) {
  for (const ConstByteSpan& frame : frames) prepare(frame, Use::kInput);
}

void prepare_outputs(const DecodeCall& call) {
  for (const ValueSpan& output : call.outputs)
    prepare(output, call.mode == DecodeMode::kAdd ? Use::kInput : Use::kOutput);
}

}  // namespace

void CodecUnderTest::encode(const EncodeCall& call, ByteSpan frame) const {
  if (!is_device_call(call.gradients, call.execution)) return codec_->encode(call, frame);
  EncodeCall copy = call;
  DeviceParts parts(copy);
  parts.copy_words(copy);
  prepare(frame, Use::kOutput);
  prepare_states(call.states);
  for (const ConstValueSpan& gradient : call.gradients) prepare(gradient, Use::kInput);
  codec_->encode(copy, frame);
  parts.finish();
}

void CodecUnderTest::decode(const DecodeCall& call) const {
  if (!is_device_call(call.outputs, call.execution)) return codec_->decode(call);
  DecodeCall copy = call;
  DeviceParts parts(copy);
  prepare_outputs(call);
  prepare_frames(call.frames);
  codec_->decode(copy);
  parts.finish();
}

void CodecUnderTest::reduce(const ReduceCall& call, ByteSpan frame) const {
  if (!is_device_call(call.states, call.execution)) return codec_->reduce(call, frame);
  ReduceCall copy = call;
  DeviceParts parts(copy);
  parts.copy_words(copy);
  prepare(frame, Use::kOutput);
  prepare_states(call.states);
  prepare_frames(call.frames);
  codec_->reduce(copy, frame);
  parts.finish();
}

void CodecUnderTest::encode_native(const EncodeCall& call, float factor, ValueSpan values) const {
  if (!is_device_call(call.gradients, call.execution))
    return codec_->encode_native(call, factor, values);
  EncodeCall copy = call;
  DeviceParts parts(copy);
  parts.copy_words(copy);
  prepare(values, Use::kOutput);
  prepare_states(call.states);
  prepare_memories(call.memories);
  for (const ConstValueSpan& gradient : call.gradients) prepare(gradient, Use::kInput);
  codec_->encode_native(copy, factor, values);
  parts.finish();
}

void CodecUnderTest::decode_native(const DecodeCall& call, ConstValueSpan values) const {
  if (!is_device_call(call.outputs, call.execution)) return codec_->decode_native(call, values);
  DecodeCall copy = call;
  DeviceParts parts(copy);
  prepare_outputs(call);
  prepare(values, Use::kInput);
  prepare_memories(call.memories);
  codec_->decode_native(copy, values);
  parts.finish();
}

void CodecUnderTest::absorb(const DecodeCall& call, ConstValueSpan values) const {
  if (!is_device_call(call.outputs, call.execution)) return codec_->absorb(call, values);
  DecodeCall copy = call;
  DeviceParts parts(copy);
  if (!values.empty()) prepare(values, Use::kInput);
  codec_->absorb(copy, values);
  parts.finish();
}

}  // namespace tersor::test
