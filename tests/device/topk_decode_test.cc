// topk on a device: windows of a segment, and payloads with invalid indices.

#include "tests/support/codec_harness.h"

#include <tersor/codecs/topk.h>
#include <tersor/error.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <string>

namespace tersor::test {
namespace {

/// Frames of one segment in host and device memory, and harnesses for decoding the frames.
class Decoders {
 public:
  Decoders(const char* spec, std::size_t count, Dtype dtype)
      : host_(spec, {count}, {.dtype = dtype, .memory = Memory::kHost}),
        device_(spec, {count}, {.dtype = dtype, .memory = Memory::kDevice}) {
    for (std::size_t i = 0; i < 2; ++i) {
      host_.draw(i);
      host_frames_.push_back(host_.encode());
      GuardedBytes& copy =
          frames_.emplace_back(host_frames_.back().span().size(), 0, Memory::kDevice);
      std::memcpy(copy.span().data(), host_frames_.back().span().data(), copy.span().size());
    }
  }

  void expect_same_window(std::size_t first, std::size_t count, DecodeMode mode) {
    const auto decode = [&](CodecHarness& harness, const std::vector<GuardedBytes>& frames) {
      harness.set_output(gaussian(harness.segments[0].count, 3));
      DecodeCall call = harness.decode_call(frames);
      const std::array window = {call.outputs[0].subspan(0, count)};
      call.outputs = window;
      call.window_first = first;
      call.mode = mode;
      call.factor = 0.3f;
      harness.codec().decode(call);
      return harness.outputs();
    };
    EXPECT_TRUE(same_values(decode(host_, host_frames_), decode(device_, frames_)))
        << count << " values from " << first << " on";
    EXPECT_TRUE(device_.intact());
  }

  /// The device's error for the second frame after `damage`. Restores the frame afterwards.
  std::string complaint(const std::function<void(ByteSpan payload)>& damage) {
    const ByteSpan frame = frames_[1].span();
    damage(frame.subspan(sizeof(FrameHeader)));
    change_header(frame, [](FrameHeader&) {});
    const std::string said =
        error_of<WireError>([&] { device_.decode(frames_, DecodeMode::kAssign); });
    EXPECT_TRUE(device_.intact());
    std::memcpy(frame.data(), host_frames_[1].span().data(), frame.size());
    return said;
  }

  std::vector<float> outputs() const { return device_.outputs(); }
  /// Indices of the units of 4,096 outputs with NaN.
  std::vector<std::size_t> poisoned_units() const {
    std::vector<std::size_t> units;
    const std::vector<float> values = outputs();
    for (std::size_t i = 0; i < values.size(); i += 4096) {
      if (!std::isnan(values[i])) continue;
      units.push_back(i / 4096);
      for (std::size_t j = i; j < std::min(values.size(), i + 4096); ++j)
        EXPECT_TRUE(std::isnan(values[j])) << j;
    }
    return units;
  }

 private:
  CodecHarness host_, device_;
  std::vector<GuardedBytes> host_frames_, frames_;
};

TEST(TopkDecodeOnADevice, Windows) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kF16}) {
    Decoders decoders("topk:density=0.02,values=bf16", 70'001, dtype);
    for (const std::size_t first : {0, 1, 512, 4095, 4096, 65'535, 65'536, 70'000})
      for (const std::size_t count : {0, 1, 513, 9'000})
        if (first + count <= 70'001)
          for (const DecodeMode mode : {DecodeMode::kAssign, DecodeMode::kAdd})
            decoders.expect_same_window(first, count, mode);
  }
}

/// Writes one number of a section.
template <typename T>
std::function<void(ByteSpan)> put(std::size_t offset, std::size_t index, T value) {
  return [=](ByteSpan payload) {
    std::memcpy(payload.data() + offset + index * sizeof(T), &value, sizeof value);
  };
}

TEST(TopkDecodeOnADevice, DamagedIndices) {
  const TopkLayout layout{70'001, 701, TopkValues::kF32};
  const std::size_t index = layout.index_offset();
  const auto set_first = [](std::size_t tile, std::uint32_t value) { return put(0, tile, value); };
  const auto set_index = [&](std::size_t position, std::size_t value) {
    return put(index, position, static_cast<std::uint16_t>(value));
  };
  Decoders decoders("topk", layout.count, Dtype::kF32);
  const auto poisoned = [&](const std::function<void(ByteSpan)>& damage) {
    const std::string said = decoders.complaint(damage);
    EXPECT_NE(said.find("frame 1"), std::string::npos) << said;
    return decoders.poisoned_units();
  };
  using Units = std::vector<std::size_t>;
  EXPECT_EQ(decoders.complaint([](ByteSpan) {}), "");
  EXPECT_EQ(decoders.poisoned_units(), Units{});
  Units first_tile(16), second_tile = {16, 17}, all(18);
  std::iota(first_tile.begin(), first_tile.end(), 0);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(poisoned(set_first(0, 1)), first_tile);
  EXPECT_EQ(poisoned(set_first(1, 702)), all);
  EXPECT_EQ(poisoned(set_first(1, 0xffffffffu)), all);
  EXPECT_EQ(poisoned(set_first(2, 702)), second_tile);
  EXPECT_EQ(poisoned(set_first(2, 0)), second_tile);
  EXPECT_EQ(poisoned(set_index(0, 65'535)).size(), 1u);
  EXPECT_EQ(poisoned(set_index(1, 0)).size(), 1u);
  EXPECT_EQ(poisoned(set_index(700, 4'465)), Units{17});
  EXPECT_EQ(poisoned(set_index(700, 65'535)), Units{17});
  EXPECT_EQ(poisoned([&](ByteSpan payload) {  // a repeated index
              std::memcpy(payload.data() + index + 2, payload.data() + index, 2);
            })
                .size(),
            1u);
}

TEST(TopkDecodeOnADevice, RejectsArbitraryBytes) {
  Decoders decoders("topk:density=0.01,values=int8", 70'001, Dtype::kBf16);
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    EXPECT_NE(decoders.complaint([&](ByteSpan payload) {
      const std::size_t from = seed % 2 == 0 ? 0 : 16;  // all, or all except `first` values
      for (std::byte& byte : payload.subspan(from)) byte = std::byte(random());
    }),
              "");
  }
}

}  // namespace
}  // namespace tersor::test
