// Frames larger than the caches: written with non-temporal stores, and summed by the writing
// thread.

#include "tests/support/codec_conformance.h"
#include "tests/support/grid.h"
#include "tests/support/reference.h"

namespace tersor::test {
namespace {

class StreamedFrames : public ::testing::TestWithParam<CodecCase> {};

TEST_P(StreamedFrames, ChecksumsMatchAndDetectDamage) {
  const std::size_t longest = grid_is_small() ? 1'000'005 : 16'000'005;
  CodecHarness harness(GetParam().spec, {longest, 3, 0, 1001}, {.threads = 2});
  const GuardedBytes frame = harness.encode();
  const std::uint64_t checksum = frame_checksum(frame.span());
  for_each_isa([&] { EXPECT_EQ(read_frame_header(harness.encode().span()).checksum, checksum); });
  const GuardedBytes sum = harness.reduce({frame, frame});
  EXPECT_EQ(read_frame_header(sum.span()).checksum, frame_checksum(sum.span()));
  harness.decode({sum});
  GuardedBytes damaged = frame;
  damaged.span()[damaged.span().size() / 2] ^= std::byte{1};
  EXPECT_THROW(harness.decode({damaged}), WireError);
}

INSTANTIATE_TEST_SUITE_P(All, StreamedFrames,
                         ::testing::Values(CodecCase{"none"}, CodecCase{"none+ef"},
                                           CodecCase{"bf16"}, CodecCase{"int8"},
                                           CodecCase{"int4+ef"}, CodecCase{"hadamard:bits=3"},
                                           CodecCase{"blocktopk:density=0.25,values=bf16+ef"}),
                         case_name);

}  // namespace
}  // namespace tersor::test
