// Tests with many bit patterns or large counts, feasible only on a GPU.

#include "tests/gpu/device_memory.h"
#include "tests/support/grid.h"
#include "tests/support/reference.h"

#include <tersor/codecs/int8.h>

#include <cstring>

namespace tersor::test {
namespace {

/// Every 61st bit pattern of an f32 (977th on a small grid), with all exponents and with NaNs.
/// Compares the device's conversion instructions with the formulas.
TEST(GpuValues, ConversionsOfAllKindsOfNumbers) {
  const std::uint64_t step = grid_is_small() ? 977 : 61;
  std::vector<float> patterns((std::uint64_t{1} << 32) / step + 1);
  for (std::size_t i = 0; i < patterns.size(); ++i)
    patterns[i] = from_bits(static_cast<std::uint32_t>(i * step));
  for (const char* spec : {"bf16", "f16"}) {
    const Stream stream;
    DeviceCodec device(spec, patterns, Checksum::kOff);
    device.encode(stream);
    stream.synchronize();
    CodecHarness host(spec, {patterns.size()},
                      {.checksum = Checksum::kOff, .memory = Memory::kHost});
    host.set_gradient(patterns);
    const GuardedBytes frame = host.encode();
    const auto found = device.frame();
    EXPECT_TRUE(same_bytes(frame.span().subspan(sizeof(FrameHeader)),
                           std::span(found).subspan(sizeof(FrameHeader))))
        << spec;
  }
}

/// More than 2^32 values. The last units must equal the same values encoded separately.
TEST(GpuValues, CountsBeyond32Bits) {
  constexpr std::size_t kCount = (std::size_t{1} << 32) + 70'001, kTail = 70'001 + 512;
  std::size_t free_bytes = 0, all = 0;
  check_cuda(cudaMemGetInfo(&free_bytes, &all));
  if (free_bytes < 3 * kCount + (std::size_t{1} << 30)) GTEST_SKIP() << "too little memory";
  const Buffer gradient(2 * kCount, Memory::kDevice);
  check_cuda(cudaMemset(gradient.pointer(), 0x3f, gradient.bytes()));
  const std::vector<float> tail = gaussian(kTail, 9);
  const GuardedValues tail_values(tail, Dtype::kBf16, 0, Memory::kHost);
  check_cuda(cudaMemcpy(gradient.pointer() + 2 * (kCount - kTail), tail_values.bytes().data(),
                        2 * kTail, cudaMemcpyHostToDevice));
  const auto codec = make_codec("int8");
  const Segment segment{.count = kCount};
  const Plan plan =
      codec->plan({.segments = {&segment, 1}, .dtype = Dtype::kBf16, .memory = Memory::kDevice});
  const Buffer frame(plan.frame_bytes, Memory::kDevice), workspace(64, Memory::kDevice);
  const ConstValueSpan values = gradient.values(kCount, Dtype::kBf16);
  EncodeCall call{.segments = {&segment, 1}, .gradients = {&values, 1}};
  call.identity.checksum = Checksum::kOff;
  call.execution.workspace = workspace.span();
  codec->encode(call, frame.span());
  std::vector<std::byte> codes(kTail);
  check_cuda(cudaMemcpy(
      codes.data(),
      frame.pointer() + sizeof(FrameHeader) + Int8Layout{kCount}.codes_offset() + kCount - kTail,
      kTail, cudaMemcpyDeviceToHost));
  CodecHarness host("int8", {kTail}, {.dtype = Dtype::kBf16, .memory = Memory::kHost});
  host.set_gradient(tail);
  const GuardedBytes expected = host.encode();
  const auto* first =
      expected.span().data() + sizeof(FrameHeader) + Int8Layout{kTail}.codes_offset();
  EXPECT_TRUE(std::equal(codes.begin(), codes.end(), first));
}

}  // namespace
}  // namespace tersor::test
