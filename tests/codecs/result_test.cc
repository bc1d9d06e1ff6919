// Codecs with the option "result": the owner decodes frames of the first codec and encodes the sum
// with the second codec.

#include "tests/support/codec_harness.h"

#include <tersor/codec.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace tersor::test {
namespace {

const std::vector<std::size_t> kSumCounts = {1000, 0, 4096, 1};

std::string refusal_of(const std::string& spec) {
  return error_of<InvalidArgumentError>([&] { make_codec(spec); });
}

std::vector<GuardedBytes> frames_of_ranks(const std::string& spec, const HarnessOptions& options) {
  std::vector<GuardedBytes> frames;
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    HarnessOptions own = options;
    own.seed = seed;
    frames.push_back(CodecHarness(spec, kSumCounts, own).encode());
  }
  return frames;
}

/// The sum that `spec` decodes from frames.
std::vector<float> read_sum(const std::string& spec, const std::vector<GuardedBytes>& frames,
                            const HarnessOptions& options, float factor = 1.0f) {
  CodecHarness reader(spec, kSumCounts, options);
  reader.decode(frames, DecodeMode::kAssign, factor);
  return reader.outputs();
}

TEST(Result, CanonicalSpecPutsResultLast) {
  EXPECT_EQ(make_codec("hadamard:bits=1,result=hadamard:bits=2+ef")->spec().text(),
            "hadamard:bits=1,result=hadamard+ef");
  EXPECT_EQ(make_codec("int4:result=int8:rounding=stochastic")->spec().text(),
            "int4:result=int8:rounding=stochastic");
  EXPECT_EQ(make_codec("blocktopk:density=0.03,values=int4,result=int8")->results().spec().text(),
            "int8");
  const auto codec = make_codec("int8:result=hadamard:bits=4+ef");
  EXPECT_TRUE(codec->results().has_feedback());
  EXPECT_EQ(make_codec(codec->spec().text())->spec().text(), codec->spec().text());
}

TEST(Result, RejectsInvalidResultCodecs) {
  for (const char* spec : {"topk:result=int8", "int8:result=topk:density=0.1", "intsum:result=int8",
                           "lowrank:rank=2,result=int8"})
    EXPECT_NE(refusal_of(spec).find("give codecs for two-shot"), std::string::npos) << spec;
  EXPECT_NE(refusal_of("int8:result=int4:result=int8").find("once"), std::string::npos);
  EXPECT_NE(refusal_of("int8:result=int9").find("int9"), std::string::npos);
  EXPECT_FALSE(refusal_of("int8:result=").empty());
  EXPECT_FALSE(refusal_of("int8:result=int8,rounding=stochastic").empty());
}

// With the same codec twice, the bytes are equal to the bytes of the plain codec for f32 gradients.
TEST(Result, SameResultCodecChangesNoBytes) {
  for (const std::string spec : {"int8", "int4", "hadamard:bits=2", "blocktopk:density=0.1"})
    for (const std::string feedback : {"", "+ef"}) {
      SCOPED_TRACE(spec + feedback);
      const auto join = spec.find(':') == std::string::npos ? ":result=" : ",result=";
      const std::vector<GuardedBytes> frames = frames_of_ranks(spec + feedback, {});
      CodecHarness plain(spec + feedback, kSumCounts),
          twice(spec + join + spec + feedback, kSumCounts);
      plain.words.gradient_factor = twice.words.gradient_factor = 3;
      plain.words.residual_factor = twice.words.residual_factor = 0.5f;
      const GuardedBytes wanted = plain.reduce(frames, 0.25f), found = twice.reduce(frames, 0.25f);
      const std::size_t bytes = frame_bytes(wanted.span());
      ASSERT_EQ(frame_bytes(found.span()), bytes);
      EXPECT_TRUE(std::ranges::equal(found.span().first(bytes), wanted.span().first(bytes)));
      EXPECT_EQ(twice.residuals_out(), plain.residuals_out());
      EXPECT_TRUE(twice.intact());
    }
}

TEST(Result, EncodesTheSumWithTheResultCodec) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16}) {
    SCOPED_TRACE(dtype_name(dtype));
    const HarnessOptions options{.dtype = dtype};
    const std::vector<GuardedBytes> frames = frames_of_ranks("int4", options);
    CodecHarness owner("int4:result=int8", kSumCounts, options);
    std::vector<GuardedBytes> result;
    result.push_back(owner.reduce(frames, 0.5f));
    EXPECT_GT(result[0].span().size(), frames[0].span().size());
    const std::vector<float> sum = read_sum("int4", frames, options, 0.5f);
    const std::vector<float> found = read_sum("int8", result, options);
    EXPECT_LT(distance(sum, found), 0.02 * norm_of(sum));
    EXPECT_TRUE(owner.intact());
  }
}

// The owner's residual is the error of the second codec only.
TEST(Result, ResidualIsErrorOfResultCodec) {
  const std::vector<GuardedBytes> frames = frames_of_ranks("int8", {});
  CodecHarness owner("int8:result=hadamard:bits=1+ef", kSumCounts);
  std::vector<GuardedBytes> result;
  result.push_back(owner.reduce(frames));
  std::vector<float> wanted = read_sum("int8", frames, {});
  const std::vector<float> found = read_sum("hadamard:bits=1", result, {});
  std::size_t index = 0;
  for (std::size_t segment = 0; segment < kSumCounts.size(); ++segment)
    for (const float before : owner.residual_in(segment)) wanted[index++] += before;
  for (std::size_t i = 0; i < wanted.size(); ++i) wanted[i] -= found[i];
  EXPECT_LT(distance(wanted, owner.residuals_out()), 1e-5 * norm_of(wanted));
}

// A parameter without a gradient on the owner still gets the sum of the other ranks.
TEST(Result, IgnoresActiveFlagsOfTheOwner) {
  const std::vector<GuardedBytes> frames = frames_of_ranks("int8", {});
  CodecHarness owner("int8:result=int8", kSumCounts), plain("int8", kSumCounts);
  const std::uint32_t none = 0;
  if (default_memory() == Memory::kDevice) GTEST_SKIP() << "the flag must lie on the device";
  for (Segment& segment : owner.segments) segment.active = &none;
  const GuardedBytes found = owner.reduce(frames), wanted = plain.reduce(frames);
  const std::size_t bytes = frame_bytes(wanted.span());
  EXPECT_TRUE(std::ranges::equal(found.span().first(bytes), wanted.span().first(bytes)));
}

TEST(Result, ReduceWithoutStatesIgnoresFeedback) {
  const std::vector<GuardedBytes> frames = frames_of_ranks("int8", {});
  CodecHarness owner("int8:result=hadamard+ef", kSumCounts),
      plain("int8:result=hadamard", kSumCounts);
  ReduceCall call = owner.reduce_call(frames);
  call.states = {};
  const GuardedBytes wanted = plain.reduce(frames);
  GuardedBytes found(wanted.span().size(), 0, default_memory());
  owner.codec().reduce(call, found.span());
  const std::size_t bytes = frame_bytes(wanted.span());
  EXPECT_TRUE(std::ranges::equal(found.span().first(bytes), wanted.span().first(bytes)));
}

TEST(Result, RejectsDamagedFrameAndKeepsResidual) {
  std::vector<GuardedBytes> frames = frames_of_ranks("int8+ef", {});
  frames[1].span()[200] ^= std::byte{1};
  CodecHarness owner("int8:result=hadamard+ef", kSumCounts);
  const std::vector<float> before = owner.residuals_out();
  EXPECT_THROW(owner.reduce(frames), WireError);
  if (default_memory() == Memory::kHost) {
    EXPECT_EQ(owner.residuals_out(), before);
  }
}

}  // namespace
}  // namespace tersor::test
