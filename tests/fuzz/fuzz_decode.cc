// Fuzzes frames: decode, reduce and absorb must either refuse or read a frame, without access
// outside of the spans. The input is a frame. The call is derived from the frame's header to pass
// the header checks. Each frame is tried unchanged and with a correct checksum.

#include "codecs/frame.h"
#include "tests/support/specs.h"

#include <tersor/codec.h>
#include <tersor/error.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace {

using namespace tersor;

constexpr std::uint64_t kMostValues = 200'000;
constexpr std::uint32_t kMaxSegments = 5;

struct FreeAligned {
  void operator()(std::byte* bytes) const { std::free(bytes); }
};

/// A buffer of exact size, aligned to 64 bytes. The sanitizer detects accesses after its end.
class Bytes {
 public:
  explicit Bytes(std::size_t bytes) : bytes_(bytes) {
    void* memory = nullptr;
    if (posix_memalign(&memory, 64, std::max<std::size_t>(bytes, 1)) != 0) std::abort();
    memory_.reset(static_cast<std::byte*>(memory));
    std::memset(memory, 0, bytes);
  }
  ByteSpan span() const { return {memory_.get(), bytes_}; }

 private:
  std::size_t bytes_;
  std::unique_ptr<std::byte, FreeAligned> memory_;
};

const std::vector<std::shared_ptr<const Codec>>& fuzzed_codecs() {
  static const std::vector<std::shared_ptr<const Codec>> list = [] {
    std::vector<std::shared_ptr<const Codec>> made;
    for (const CodecInfo& info : test::flat_codecs())
      if (test::offers(std::string(info.name), Exchange::kGather))
        for (const std::string& spec : test::example_specs(info)) made.push_back(make_codec(spec));
    return made;
  }();
  return list;
}

/// A call matching a header, within bounds.
struct Shape {
  std::vector<Segment> segments;
  Dtype dtype = Dtype::kF32;
  FrameIdentity identity;
};

Shape shape_of(const FrameHeader& header) {
  Shape shape;
  shape.dtype = static_cast<Dtype>(header.dtype % 3);
  shape.identity.round = header.round;
  shape.identity.signature = header.signature;
  const bool checked = (header.flags & kFrameHasChecksum) != 0;
  shape.identity.checksum = checked ? Checksum::kOn : Checksum::kOff;
  const std::uint32_t segments = header.segments % (kMaxSegments + 1);
  std::uint64_t rest = header.count % (kMostValues + 1);
  for (std::uint32_t i = 0; i < segments; ++i) {
    const std::uint64_t count = i + 1 == segments ? rest : rest / 3;
    shape.segments.push_back({.count = count, .first_index = i == 0 ? header.first_index : 0});
    rest -= count;
  }
  return shape;
}

/// Outputs of exact length, and calls with these outputs.
class Calls {
 public:
  Calls(const Codec& codec, const Shape& shape) : codec_(codec), shape_(shape) {
    for (const Segment& segment : shape.segments) {
      memory_.emplace_back(segment.count * dtype_bytes(shape.dtype));
      outputs_.emplace_back(memory_.back().span().data(), segment.count, shape.dtype);
    }
    plan_ = codec.plan({.segments = shape.segments, .dtype = shape.dtype, .contributions = 2});
    workspace_ = std::make_unique<Bytes>(plan_.workspace_bytes);
  }

  void run(ConstByteSpan frame) {
    const ConstByteSpan frames[] = {frame, frame};
    attempt([&] { codec_.decode(decode_call(frames, DecodeMode::kAssign)); });
    attempt([&] { codec_.decode(decode_call(frames, DecodeMode::kAdd)); });
    attempt([&] { codec_.absorb(decode_call(frames, DecodeMode::kAssign), {}); });
    attempt([&] { reduce(frames); });
    attempt([&] { window(frames); });
  }

 private:
  template <typename Body>
  void attempt(const Body& body) {
    try {
      body();
    } catch (const WireError&) {
    } catch (const InvalidArgumentError&) {
    }
  }

  DecodeCall decode_call(std::span<const ConstByteSpan> frames, DecodeMode mode) const {
    DecodeCall call{.segments = shape_.segments, .frames = frames, .outputs = outputs_};
    call.mode = mode;
    call.factor = 0.5f;
    call.identity = shape_.identity;
    call.execution.workspace = workspace_->span();
    return call;
  }

  void reduce(std::span<const ConstByteSpan> frames) {
    ReduceCall call{.segments = shape_.segments, .dtype = shape_.dtype, .frames = frames};
    call.identity = shape_.identity;
    call.execution.workspace = workspace_->span();
    const Bytes target(plan_.frame_bytes);
    codec_.reduce(call, target.span());
  }

  void window(std::span<const ConstByteSpan> frames) {
    if (shape_.segments.size() != 1) return;
    const std::size_t count = shape_.segments[0].count / 3;
    const Bytes memory(count * dtype_bytes(shape_.dtype));
    const ValueSpan output(memory.span().data(), count, shape_.dtype);
    DecodeCall call = decode_call(frames, DecodeMode::kAssign);
    call.outputs = {&output, 1};
    call.window_first = count;
    codec_.decode(call);
  }

  const Codec& codec_;
  const Shape& shape_;
  Plan plan_;
  std::vector<Bytes> memory_;
  std::vector<ValueSpan> outputs_;
  std::unique_ptr<Bytes> workspace_;
};

/// A frame of this shape written by the codec, with the payload replaced by the input's bytes.
Bytes plausible_frame(const Codec& codec, const Shape& shape, ConstByteSpan payload) {
  const Plan plan = codec.plan({.segments = shape.segments, .dtype = shape.dtype});
  Bytes frame(plan.frame_bytes);
  const Bytes workspace(plan.workspace_bytes);
  static const std::vector<float> zeros(kMostValues);
  std::vector<ConstValueSpan> gradients;
  for (const Segment& segment : shape.segments)
    gradients.emplace_back(reinterpret_cast<const std::byte*>(zeros.data()), segment.count,
                           shape.dtype);
  EncodeCall call{.segments = shape.segments, .gradients = gradients};
  call.identity = shape.identity;
  call.execution.workspace = workspace.span();
  codec.encode(call, frame.span());
  const FrameHeader header = read_frame_header(frame.span());
  const ByteSpan target = encoding::payload_of(frame.span());
  std::memcpy(target.data(), payload.data(), std::min(target.size(), payload.size()));
  encoding::seal_frame(header, frame.span(), nullptr);
  return frame;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t count) {
  const Bytes frame(count);
  std::memcpy(frame.span().data(), bytes, count);
  try {
    frame_bytes(frame.span());
  } catch (const WireError&) {
  }
  if (count < sizeof(FrameHeader)) return 0;
  FrameHeader header;
  std::memcpy(&header, bytes, sizeof header);
  const Shape shape = shape_of(header);
  for (const auto& codec : fuzzed_codecs()) {
    if (codec->id() != header.codec_id) continue;
    Calls calls(*codec, shape);
    calls.run(frame.span());
    const ConstByteSpan payload = encoding::payload_of(ConstByteSpan(frame.span()));
    calls.run(plausible_frame(*codec, shape, payload).span());
  }
  return 0;
}
