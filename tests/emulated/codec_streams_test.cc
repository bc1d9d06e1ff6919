// The codecs' device calls on emulated streams: encoded on one, decoded on another one.

#include "kernels/common/device_memory.h"
#include "kernels/common/event.h"
#include "tests/emulated/emulator.h"
#include "tests/emulated/ranks.h"
#include "tests/emulated/streams.h"

#include <gtest/gtest.h>
#include <tersor/buffer.h>
#include <tersor/codec.h>

#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace tersor::emulator {
namespace {

using kernels::copy_bytes;
using kernels::PinnedBuffer;

constexpr std::size_t kCount = 1000;

PinnedBuffer gaussian(std::size_t count) {
  PinnedBuffer values(count * sizeof(float));
  std::mt19937_64 random(7);
  std::normal_distribution<float> normal;
  const std::span<float> all(reinterpret_cast<float*>(values.pointer()), count);
  for (float& value : all) value = normal(random);
  return values;
}

/// A codec, and memory for one segment's way there and back.
class RoundTrip {
 public:
  RoundTrip(const std::string& spec, std::size_t count, Memory memory)
      : codec_(make_codec(spec)),
        segment_{.count = count},
        memory_(memory),
        plan_(codec_->plan({.segments = {&segment_, 1}, .memory = memory})),
        gradient_(count * sizeof(float), memory),
        frame_(plan_.frame_bytes, memory),
        output_(count * sizeof(float), memory),
        workspaces_{Buffer(plan_.workspace_bytes, memory), Buffer(plan_.workspace_bytes, memory)} {}

  Buffer& gradient() { return gradient_; }
  Buffer& output() { return output_; }

  void encode(StreamView stream) {
    const ConstValueSpan gradient = gradient_.values(segment_.count, Dtype::kF32);
    codec_->encode({.segments = {&segment_, 1},
                    .gradients = {&gradient, 1},
                    .execution = execution(workspaces_[0], stream)},
                   frame_.span());
  }

  void decode(StreamView stream) {
    const ConstByteSpan frame = frame_.span();
    const ValueSpan output = output_.values(segment_.count, Dtype::kF32);
    codec_->decode({.segments = {&segment_, 1},
                    .frames = {&frame, 1},
                    .outputs = {&output, 1},
                    .execution = execution(workspaces_[1], stream)});
  }

 private:
  Execution execution(Buffer& workspace, StreamView stream) const {
    return {.stream = stream, .workspace = workspace.span(), .memory = memory_};
  }

  std::shared_ptr<const Codec> codec_;
  Segment segment_;
  Memory memory_;
  Plan plan_;
  Buffer gradient_, frame_, output_;
  Buffer workspaces_[2];
};

enum class Held { kNo, kYes };

std::vector<std::byte> on_host(const std::string& spec) {
  const PinnedBuffer values = gaussian(kCount);
  RoundTrip trip(spec, kCount, Memory::kHost);
  std::memcpy(trip.gradient().span().data(), values.pointer(), values.bytes());
  trip.encode({});
  trip.decode({});
  return {trip.output().span().begin(), trip.output().span().end()};
}

std::vector<std::byte> on_two_streams(const std::string& spec, Held held) {
  const PinnedBuffer values = gaussian(kCount), found(values.bytes());
  RoundTrip trip(spec, kCount, Memory::kDevice);
  const Stream encodes, decodes;
  kernels::Event encoded;
  copy_bytes(trip.gradient().span().data(), values.pointer(), values.bytes(), encodes.view());
  trip.encode(encodes.view());
  if (held == Held::kYes) order(encodes.view(), decodes.view(), encoded);
  trip.decode(decodes.view());
  copy_bytes(found.pointer(), trip.output().span().data(), found.bytes(), decodes.view());
  decodes.synchronize();
  encodes.synchronize();
  return {found.pointer(), found.pointer() + found.bytes()};
}

class CodecStreams : public ::testing::TestWithParam<const char*> {};

TEST_P(CodecStreams, YieldTheHostsValues) {
  const std::vector<std::byte> expected = on_host(GetParam());
  for_each_order(20, [&] { EXPECT_EQ(on_two_streams(GetParam(), Held::kYes), expected); });
}

TEST_P(CodecStreams, WithoutAnEventYieldOthersUnderSomeSeed) {
  const std::vector<std::byte> expected = on_host(GetParam());
  int found = 0;
  for_each_order(20, [&] {
    try {
      found += on_two_streams(GetParam(), Held::kNo) != expected;
    } catch (const EmulatorError&) {
      ++found;
    }
  });
  EXPECT_GT(found, 0);
}

INSTANTIATE_TEST_SUITE_P(Codecs, CodecStreams,
                         ::testing::Values("none", "bf16", "int8", "int4", "topk"),
                         [](const auto& info) { return std::string(info.param); });

TEST(CodecStreams, NeitherWaitNorAllocateInACapture) {
  const std::vector<std::byte> expected = on_host("int8");
  const PinnedBuffer values = gaussian(kCount);
  RoundTrip trip("int8", kCount, Memory::kDevice);
  const Stream stream;
  begin_capture(stream.view());
  copy_bytes(trip.gradient().span().data(), values.pointer(), values.bytes(), stream.view());
  trip.encode(stream.view());
  trip.decode(stream.view());
  const Graph graph = end_capture(stream.view());
  for (int repeat = 0; repeat < 3; ++repeat) replay(graph, stream.view());
  stream.synchronize();
  EXPECT_EQ(bytes_of(trip.output().span().data(), expected.size()), expected);
}

}  // namespace
}  // namespace tersor::emulator
