// Headers, signatures and slices of segments.

#include "codecs/slices.h"
#include "tests/support/codec_harness.h"
#include "tests/support/reference.h"

#include <tersor/wire.h>

#include <gtest/gtest.h>

#include <cstring>

namespace tersor::test {
namespace {

TEST(Wire, HeaderFieldsRoundTrip) {
  CodecHarness harness("int8", {1000, 24});
  harness.segments[0].first_index = 4096;
  harness.identity = {.signature = 5, .checksum = Checksum::kOff, .round = 0};
  const GuardedBytes frame = harness.encode();
  const FrameHeader header = read_frame_header(frame.span());
  EXPECT_EQ(std::memcmp(frame.span().data(), "TERS", 4), 0);
  EXPECT_EQ(header.version, 3);
  EXPECT_EQ(header.codec_id, 4);
  EXPECT_EQ(header.dtype, 0);
  EXPECT_EQ(header.flags, 0);
  EXPECT_EQ(header.segments, 2u);
  EXPECT_EQ(header.count, 1024u);
  EXPECT_EQ(header.first_index, 4096u);
  EXPECT_EQ(header.payload_bytes, 16u + 1008 + 16 + 32);
  EXPECT_EQ(header.signature, 5u);
  EXPECT_EQ(frame_bytes(frame.span()), frame.span().size());
}

TEST(Wire, RejectsOtherVersions) {
  GuardedBytes frame = CodecHarness("int8", {10}).encode();
  for (const std::uint16_t version : {0, 1, 2, 4}) {
    change_header(frame.span(), [&](FrameHeader& header) { header.version = version; });
    const std::string error = error_of<WireError>([&] { read_frame_header(frame.span()); });
    const std::string words = "version is " + std::to_string(version) + ", expected 3";
    EXPECT_NE(error.find(words), std::string::npos) << error;
  }
}

TEST(Wire, RejectsTruncatedFrames) {
  GuardedBytes frame = CodecHarness("int8", {10}).encode();
  EXPECT_THROW(frame_bytes(frame.span().first(frame.span().size() - 1)), WireError);
  EXPECT_THROW(frame_bytes(frame.span().first(63)), WireError);
  EXPECT_THROW(frame_bytes({}), WireError);
  change_header(frame.span(), [](FrameHeader& header) { header.payload_bytes = ~0ull - 10; });
  EXPECT_THROW(frame_bytes(frame.span()), WireError);
}

TEST(Wire, FrameWithoutSegmentsIsOnlyAHeader) {
  for (const char* spec : {"bf16", "int4", "topk+ef"}) {
    CodecHarness harness(spec, {}, {.dtype = Dtype::kF16});
    const GuardedBytes frame = harness.encode();
    EXPECT_EQ(frame.span().size(), sizeof(FrameHeader));
    const FrameHeader header = read_frame_header(frame.span());
    EXPECT_EQ(header.segments + header.count + header.first_index + header.payload_bytes, 0u);
    EXPECT_EQ(header.dtype, 0) << "there is no gradient to have another";
    harness.decode({frame});
  }
}

TEST(Wire, SignaturesAreFnv1aOfLittleEndianBytes) {
  // FNV-1a of the bytes 03 00 (version) 2a 00 00 00 (the number) "a" 00.
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const unsigned char byte : {0x03, 0x00, 0x2a, 0x00, 0x00, 0x00, 0x61, 0x00})
    hash = (hash ^ byte) * 0x100000001b3;
  EXPECT_EQ(Signature().add(std::uint32_t{42}).add("a").value(), hash);
  EXPECT_NE(Signature().add("ab").add("c").value(), Signature().add("a").add("bc").value());
}

TEST(Reference, PhiloxMatchesPublishedVectors) {
  // Random123's known answers for philox4x32 with 7 rounds.
  EXPECT_EQ(philox7({0, 0, 0, 0}, 0),
            (std::array<std::uint32_t, 4>{0x5f6fb709, 0x0d893f64, 0x4f121f81, 0x4f730a48}));
  EXPECT_EQ(philox7({~0u, ~0u, ~0u, ~0u}, ~0ull),
            (std::array<std::uint32_t, 4>{0x5207ddc2, 0x45165e59, 0x4d8ee751, 0x8c52f662}));
}

TEST(Slices, CoverEverySegmentOnceInOrder) {
  using namespace encoding;
  const std::vector<Segment> segments = {{.count = 0},
                                         {.count = 5},
                                         {.count = 3 * kSliceCount + 1},
                                         {.count = 0},
                                         {.count = kSliceCount}};
  for (const unsigned threads : {1, 2, 3, 7}) {
    Threads pool(threads);
    std::vector<std::vector<int>> visits;
    for (const Segment& segment : segments) visits.emplace_back(segment.count);
    std::size_t last = 0;
    const auto bytes = [](const Segment& segment) { return segment.count + 1; };
    for_each_slice(segments, threads == 1 ? nullptr : &pool, bytes, [&](const Slice& slice) {
      for (std::size_t i = 0; i < slice.count; ++i) ++visits[slice.segment][slice.first + i];
      EXPECT_EQ(slice.first % kSliceCount, 0u);
      EXPECT_LT(slice.task, max_tasks(threads));
      const std::size_t offsets[] = {0, 1, 7, 7 + 3 * kSliceCount + 2, 7 + 3 * kSliceCount + 3};
      EXPECT_EQ(slice.offset, offsets[slice.segment]);
      if (slice.is_last) __atomic_fetch_add(&last, 1, __ATOMIC_RELAXED);
    });
    EXPECT_EQ(last, 3u);
    for (const auto& segment : visits)
      for (const int times : segment) ASSERT_EQ(times, 1);
  }
}

}  // namespace
}  // namespace tersor::test
