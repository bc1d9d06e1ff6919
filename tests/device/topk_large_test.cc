// topk indices beyond 2^32 in a manually constructed frame. The test decodes windows around these
// indices.

#include "tests/support/codec_harness.h"

#include <tersor/codecs/topk.h>

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <string>

namespace tersor::test {
namespace {

constexpr std::size_t kBillions = std::size_t{1} << 32, kCount = kBillions + 200'005, kSelected = 5;
constexpr float kBefore = 0.25f, kFactor = 0.5f;
constexpr const char* kSpec = "topk:density=0.000000001";
constexpr TopkLayout kLayout{kCount, kSelected, TopkValues::kF32};
static_assert(topk_selected(kCount, 0.000000001) == kSelected);

constexpr std::array<std::size_t, kSelected> kIndices = {7, kBillions - 1, kBillions,
                                                         kBillions + 65'536 + 3, kCount - 1};
constexpr std::array<float, kSelected> kValues = {1.5f, -2.5f, 3.5f, -4.5f, 5.5f};

template <typename T>
T* section(ByteSpan payload, std::size_t offset) {
  return reinterpret_cast<T*>(payload.data() + offset);
}

void write_payload(ByteSpan payload) {
  std::memset(payload.data(), 0, payload.size());
  auto* const first = section<std::uint32_t>(payload, 0);
  for (std::size_t i = 0; i < kSelected; ++i) {
    for (std::size_t tile = kIndices[i] / TopkLayout::kTile + 1; tile <= kLayout.tiles(); ++tile)
      first[tile] = static_cast<std::uint32_t>(i + 1);
    section<std::uint16_t>(payload, kLayout.index_offset())[i] =
        static_cast<std::uint16_t>(kIndices[i] % TopkLayout::kTile);
    section<float>(payload, kLayout.values_offset())[i] = kValues[i];
  }
}

/// The header of a short frame with this payload.
GuardedBytes make_frame(Memory memory) {
  CodecHarness few(kSpec, {kSelected}, {.memory = Memory::kHost});
  GuardedBytes frame(sizeof(FrameHeader) + kLayout.bytes(), 0, memory);
  std::memcpy(frame.span().data(), few.encode().span().data(), sizeof(FrameHeader));
  write_payload(frame.span().subspan(sizeof(FrameHeader)));
  change_header(frame.span(), [](FrameHeader& header) {
    header.signature = 0;
    header.count = kCount;
    header.payload_bytes = kLayout.bytes();
  });
  return frame;
}

std::vector<float> expected(std::size_t begin, std::size_t count) {
  std::vector<float> values(count, kBefore);
  for (std::size_t i = 0; i < kSelected; ++i)
    if (kIndices[i] >= begin && kIndices[i] - begin < count)
      values[kIndices[i] - begin] += kFactor * kValues[i];
  return values;
}

/// A frame with the memory for decoding.
class Decoder {
 public:
  explicit Decoder(Memory memory)
      : memory_(memory),
        frame_(make_frame(memory)),
        workspace_(codec_.plan({.segments = {&segment_, 1}, .memory = memory}).workspace_bytes, 0,
                   memory) {}

  std::vector<float> decode(std::size_t begin, std::size_t count) {
    GuardedValues output(std::vector<float>(count, kBefore), Dtype::kF32, 0, memory_);
    const ConstByteSpan frame = frame_.span();
    const ValueSpan outputs = output.span();
    codec_.decode({.segments = {&segment_, 1},
                   .frames = {&frame, 1},
                   .outputs = {&outputs, 1},
                   .mode = DecodeMode::kAdd,
                   .factor = kFactor,
                   .execution = {.workspace = workspace_.span(), .memory = memory_},
                   .window_first = begin});
    EXPECT_TRUE(output.intact());
    return output.floats();
  }

 private:
  const Memory memory_;
  const CodecUnderTest codec_{kSpec};
  const Segment segment_{.count = kCount};
  GuardedBytes frame_, workspace_;
};

TEST(TopkDecodeOnADevice, IndicesBeyond32Bits) {
  constexpr std::size_t kBegins[] = {0, kBillions - 100, kBillions, kBillions + 65'536,
                                     kCount - 9'000};
  for (const Memory memory : {Memory::kHost, Memory::kDevice}) {
    Decoder decoder(memory);
    for (const std::size_t begin : kBegins)
      EXPECT_EQ(decoder.decode(begin, 9'000), expected(begin, 9'000)) << begin;
  }
}

}  // namespace
}  // namespace tersor::test
