// <tersor/code_sections.h>: the sections lie where a decode reads them, and checks find damage.

#include "tests/support/codec_harness.h"
#include "tests/support/errors.h"
#include "tests/support/small_floats.h"

#include <tersor/code_sections.h>

#include <gtest/gtest.h>

#include <cstring>

namespace tersor::test {
namespace {

const std::vector<std::size_t> kSectionCounts = {64, 0, 33, 1, 4096};

/// Decodes value i from the sections of its segment.
float value_in(const std::string& spec, ConstByteSpan frame, const CodeSections& at,
               std::size_t i) {
  const auto byte = [&](std::size_t offset) { return static_cast<unsigned>(frame[offset]); };
  if (spec != "nvfp4") {
    const SmallFloat& codes = spec == "mxfp8" ? kE4m3 : kE5m2;
    const int power = static_cast<int>(byte(at.scales + i / 32)) - 127;
    return static_cast<float>(std::ldexp(codes.value(byte(at.codes + i)), power));
  }
  float largest;
  std::memcpy(&largest, frame.data() + at.largest, sizeof largest);
  const auto scale = static_cast<float>(kE4m3.value(byte(at.scales + i / 16)));
  const unsigned code = byte(at.codes + i / 2) >> i % 2 * 4 & 15;
  return static_cast<float>(kE2m1.value(code)) * (largest / 2688.0f * scale);
}

TEST(CodeSections, SectionValuesEqualDecodedValues) {
  if (test_device() != nullptr) GTEST_SKIP() << "reads frames on the host";
  for (const std::string spec : {"mxfp8", "mxfp8:elements=e5m2", "nvfp4"}) {
    CodecHarness harness(spec, kSectionCounts);
    const GuardedBytes frame = harness.encode();
    harness.decode({frame});
    const auto codec = make_codec(spec);
    check_code_frame(*codec, harness.segments, Dtype::kF32, frame.span(), harness.identity);
    const std::vector<CodeSections> sections = code_sections(*codec, harness.segments);
    ASSERT_EQ(sections.size(), kSectionCounts.size());
    for (std::size_t segment = 0; segment < kSectionCounts.size(); ++segment) {
      const std::size_t count = kSectionCounts[segment], block = spec == "nvfp4" ? 16 : 32;
      EXPECT_EQ(sections[segment].scales_bytes, (count + block - 1) / block);
      EXPECT_EQ(sections[segment].codes_bytes, spec == "nvfp4" ? (count + 1) / 2 : count);
      const std::vector<float> expected = harness.output(segment);
      for (std::size_t i = 0; i < count; ++i)
        ASSERT_EQ(value_in(spec, frame.span(), sections[segment], i), expected[i]) << spec << i;
    }
  }
}

TEST(CodeSections, RejectsMismatchedFramesAndCodecs) {
  if (test_device() != nullptr) GTEST_SKIP() << "reads frames on the host";
  CodecHarness harness("mxfp8", kSectionCounts);
  GuardedBytes frame = harness.encode();
  const auto error_with = [&](const char* spec, Dtype dtype = Dtype::kF32) {
    return error_of<WireError>([&] {
      check_code_frame(*make_codec(spec), harness.segments, dtype, frame.span(), harness.identity);
    });
  };
  EXPECT_EQ(error_with("mxfp8+ef"), "");
  EXPECT_NE(error_with("mxfp8:elements=e5m2").find("elements=e4m3"), std::string::npos);
  EXPECT_NE(error_with("nvfp4").find("codec_id"), std::string::npos);
  EXPECT_NE(error_with("mxfp8", Dtype::kBf16).find("dtype"), std::string::npos);
  frame.span()[sizeof(FrameHeader) + 40] ^= std::byte{1};
  EXPECT_NE(error_with("mxfp8").find("checksum"), std::string::npos);
  for (const char* spec : {"int8", "none", "topk"}) {
    const auto codec = make_codec(spec);
    EXPECT_THROW(code_sections(*codec, harness.segments), InvalidArgumentError) << spec;
    EXPECT_THROW(check_code_frame(*codec, harness.segments, Dtype::kF32, frame.span()),
                 InvalidArgumentError);
  }
}

}  // namespace
}  // namespace tersor::test
