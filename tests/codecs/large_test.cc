// Gradients larger than the caches, written with non-temporal stores. A pattern of 64 Ki values
// repeats, and the payload must repeat the pattern's payload.

#include "tests/support/codec_harness.h"

#include <tersor/buffer.h>
#include <tersor/codecs/int4.h>
#include <tersor/codecs/int8.h>
#include <tersor/codecs/none.h>

#include <gtest/gtest.h>

#include <cstring>

namespace tersor::test {
namespace {

constexpr std::size_t kPattern = std::size_t{1} << 16;
constexpr std::size_t kRepeats = 17 * 16 + 1;  // 68 MiB of f32
constexpr std::size_t kCount = kPattern * kRepeats - 77;

/// A section of a payload: bytes per pattern, and offsets in the payloads of a pattern and of the
/// whole.
struct Section {
  std::size_t pattern_bytes;
  std::size_t small_offset;
  std::size_t large_offset;
  std::size_t large_bytes;
};

template <typename Layout>
std::vector<Section> quantized_sections() {
  constexpr Layout small{kPattern}, large{kCount};
  return {{small.scales_bytes(), 0, 0, large.scales_bytes()},
          {small.codes_bytes(), small.codes_offset(), large.codes_offset(), large.codes_bytes()}};
}

std::vector<Section> plain_sections(Dtype wire) {
  return {{ValuesLayout{kPattern, wire}.values_bytes(), 0, 0,
           ValuesLayout{kCount, wire}.values_bytes()}};
}

bool repeats(ConstByteSpan large, ConstByteSpan small, const Section& section) {
  // The last pattern is incomplete, and the last block may have another scale. Therefore the check
  // skips the last pattern.
  const std::size_t end = section.large_bytes - section.pattern_bytes;
  for (std::size_t first = 0; first + section.pattern_bytes <= end; first += section.pattern_bytes)
    if (std::memcmp(large.data() + section.large_offset + first,
                    small.data() + section.small_offset, section.pattern_bytes) != 0)
      return false;
  return true;
}

void expect_repeats(const std::string& spec, const std::vector<Section>& sections) {
  CodecHarness pattern(spec, {kPattern});
  const GuardedBytes small = pattern.encode();
  pattern.decode({small});
  const std::vector<float> values = pattern.gradient(), decoded = pattern.output();
  Buffer gradient((kCount + 1) * sizeof(float)), output((kCount + 1) * sizeof(float));
  auto* const begin = reinterpret_cast<float*>(gradient.pointer()) + 1;  // unaligned
  for (std::size_t i = 0; i < kCount; ++i) begin[i] = values[i % kPattern];
  const ConstValueSpan gradients(reinterpret_cast<std::byte*>(begin), kCount, Dtype::kF32);
  const ValueSpan outputs(output.pointer() + sizeof(float), kCount, Dtype::kF32);
  const Segment segment{.count = kCount};
  Threads threads(2);
  const Plan plan = pattern.codec().plan({.segments = {&segment, 1}, .threads = 2});
  const Buffer frame(plan.frame_bytes);
  Execution execution;
  execution.threads = &threads;
  pattern.codec().encode(
      {.segments = {&segment, 1}, .gradients = {&gradients, 1}, .execution = execution},
      frame.span());
  const auto payload = frame.span().subspan(sizeof(FrameHeader));
  for (const Section& section : sections)
    EXPECT_TRUE(repeats(payload, small.span().subspan(sizeof(FrameHeader)), section)) << spec;
  const ConstByteSpan whole = frame.span();
  pattern.codec().decode({.segments = {&segment, 1},
                          .frames = {&whole, 1},
                          .outputs = {&outputs, 1},
                          .execution = execution});
  const auto found = outputs.as<float>();
  for (std::size_t i = 0; i + kPattern < kCount; ++i)
    ASSERT_EQ(found[i], decoded[i % kPattern]) << spec << " " << i;
}

TEST(Large, RepeatedPatternGivesRepeatedPayload) {
  expect_repeats("none", plain_sections(Dtype::kF32));
  expect_repeats("bf16", plain_sections(Dtype::kBf16));
  expect_repeats("int8", quantized_sections<Int8Layout>());
  expect_repeats("int4", quantized_sections<Int4Layout>());
}

}  // namespace
}  // namespace tersor::test
