// The conformance suite: damaged, foreign and truncated frames, and the exact bytes of frames.

#include "tests/support/codec_conformance.h"
#include "tests/support/grid.h"
#include "tests/support/reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

namespace tersor::test {

void link_conformance_frames() {}

namespace {

const std::vector<std::size_t> kSmall = {130, 0, 7};

/// Step between flipped bits: every bit, or on a small grid every seventh (still all bit positions
/// within a byte).
std::size_t stride() { return grid_is_small() ? 7 : 1; }

/// Returns the error of decoding a frame. Checks after an error that the output was not written.
std::string decode_error(CodecHarness& harness, const GuardedBytes& frame) {
  const std::vector<float> marks = gaussian(harness.segments[0].count, 99);
  harness.set_output(marks);
  const std::string error = error_of<WireError>([&] { harness.decode({frame}); });
  EXPECT_TRUE(error.empty() || is_untouched_or_nan(harness.output(), marks)) << error;
  EXPECT_TRUE(harness.intact());
  return error;
}

TEST_P(CodecConformance, RejectsTruncationAtEveryLength) {
  CodecHarness harness(spec(), kSmall);
  const GuardedBytes frame = harness.encode();
  for (std::size_t bytes = 0; bytes < frame.span().size(); ++bytes) {
    GuardedBytes part(bytes);
    std::memcpy(part.span().data(), frame.span().data(), bytes);
    EXPECT_FALSE(decode_error(harness, part).empty()) << bytes;
  }
  EXPECT_EQ(decode_error(harness, frame), "");
}

TEST_P(CodecConformance, AcceptsMemoryBeyondTheFrame) {
  CodecHarness harness(spec(), kSmall);
  const GuardedBytes frame = harness.encode();
  GuardedBytes longer(frame.span().size() + 48);
  std::memcpy(longer.span().data(), frame.span().data(), frame.span().size());
  EXPECT_EQ(decode_error(harness, longer), "");
}

TEST_P(CodecConformance, RejectsForeignHeadersAndNamesField) {
  using Change = std::pair<const char*, void (*)(FrameHeader&)>;
  const Change changes[] = {
      {"magic", [](FrameHeader& header) { ++header.magic; }},
      {"version", [](FrameHeader& header) { ++header.version; }},
      {"codec_id", [](FrameHeader& header) { header.codec_id ^= 7; }},
      {"codec_id", [](FrameHeader& header) { header.codec_id = 999; }},
      {"dtype", [](FrameHeader& header) { header.dtype = 1; }},
      {"dtype", [](FrameHeader& header) { header.dtype = 200; }},
      {"round", [](FrameHeader& header) { header.round = 1; }},
      {"flags", [](FrameHeader& header) { header.flags ^= 0x8000; }},
      {"flags", [](FrameHeader& header) { header.flags ^= kFrameHasChecksum; }},
      {"segments", [](FrameHeader& header) { --header.segments; }},
      {"count", [](FrameHeader& header) { header.count += 1; }},
      {"first_index", [](FrameHeader& header) { header.first_index = 512; }},
      {"parameters", [](FrameHeader& header) { ++header.parameters[7]; }},
      {"payload_bytes", [](FrameHeader& header) { header.payload_bytes += 16; }},
      {"payload_bytes", [](FrameHeader& header) { header.payload_bytes = ~std::uint64_t{0}; }},
      {"signature", [](FrameHeader& header) { header.signature ^= 1; }},
  };
  CodecHarness harness(spec(), kSmall);
  const GuardedBytes frame = harness.encode();
  for (const auto& [field, change] : changes) {
    GuardedBytes foreign = frame;
    change_header(foreign.span(), change);
    const std::string error = decode_error(harness, foreign);
    EXPECT_NE(error.find(std::string("frame ") + field), std::string::npos) << field << error;
    EXPECT_NE(error.find("expected"), std::string::npos) << error;
  }
}

TEST_P(CodecConformance, TheFrameThatIsWrongIsNamed) {
  CodecHarness harness(spec(), kSmall);
  const GuardedBytes good = harness.encode();
  GuardedBytes bad = good;
  change_header(bad.span(), [](FrameHeader& header) { ++header.count; });
  const std::string error = error_of<WireError>([&] { harness.decode({good, good, bad}); });
  EXPECT_NE(error.find("frame 2 of 3"), std::string::npos) << error;
}

void expect_nan(const std::vector<float>& values) {
  EXPECT_TRUE(std::ranges::all_of(values, [](float value) { return std::isnan(value); }));
}

/// Checks a reduction after a bad header. If the device detected the header, the result is a valid
/// frame whose first `count` values are NaN, and residuals are unchanged. If the host detected the
/// header, the target keeps the old bytes.
void expect_poison(CodecHarness& harness, const GuardedBytes& frame, std::size_t count) {
  harness.decode({frame});
  std::vector<float> values = harness.output();
  values.resize(count);
  const bool poisoned = std::ranges::all_of(values, [](float value) { return std::isnan(value); });
  if (poisoned && harness.has_states()) {
    EXPECT_TRUE(same_values(harness.residual_out(), harness.residual_in()));
  }
  EXPECT_TRUE(poisoned || std::ranges::none_of(values, [](float v) { return std::isnan(v); }));
}

/// Checks a reduction after a wrong checksum, detected after all input was read: residuals are NaN,
/// and decoding the target fails.
void expect_refusal(CodecHarness& harness, const GuardedBytes& frame) {
  if (harness.has_states()) expect_nan(harness.residuals_out());
  EXPECT_FALSE(decode_error(harness, frame).empty());
}

TEST_P(CodecConformance, ReduceRejectsDamagedFrames) {
  if (!allows(Exchange::kTwoShot)) GTEST_SKIP() << spec() << " does not reduce";
  CodecHarness harness(spec(), kSmall);
  const GuardedBytes good = harness.encode();
  GuardedBytes flipped = good, foreign = good, part(good.span().size() - 16);
  flipped.span()[70] ^= std::byte{1};
  change_header(foreign.span(), [](FrameHeader& header) { header.signature ^= 1; });
  std::memcpy(part.span().data(), good.span().data(), part.span().size());
  const GuardedBytes damaged[] = {flipped, foreign, part};
  for (const GuardedBytes& bad : damaged) {
    GuardedBytes target(harness.plan().frame_bytes, 0, good.memory());
    std::memcpy(target.span().data(), good.span().data(), good.span().size());
    const std::vector<GuardedBytes> frames = {good, bad};
    const std::vector<float> residuals = harness.residuals_out();
    const ReduceCall call = harness.reduce_call(frames);
    EXPECT_THROW(harness.codec().reduce(call, target.span()), WireError);
    // Lists of indices are read only after checksum verification.
    if (&bad == &damaged[0] && !is_sparse()) {
      expect_refusal(harness, target);
    } else if (test_device() != nullptr) {
      expect_poison(harness, target, is_sparse() ? 1 : harness.segments[0].count);
    } else {
      EXPECT_TRUE(same_bytes(target.span().first(good.span().size()), good.span()));
      EXPECT_TRUE(same_values(harness.residuals_out(), residuals));
    }
  }
}

/// Long enough to give each warp of a small device several units.
const std::vector<std::size_t> kRuns = {70'001, 3, 513, 40'000};

// kAdd keeps the accumulator on the host. kAssign of a dense codec writes NaN, and a device writes
// NaN in both modes because no host code waits for the checksum.
TEST_P(CodecConformance, WrongChecksumKeepsAccumulatorOrWritesNan) {
  CodecHarness harness(spec(), kRuns);
  const GuardedBytes good = harness.encode();
  GuardedBytes flipped = good;
  flipped.span().back() ^= std::byte{64};
  const std::vector<float> before = gaussian(kRuns[0], 99);
  for (const DecodeMode mode : {DecodeMode::kAdd, DecodeMode::kAssign}) {
    harness.set_output(before);
    EXPECT_THROW(harness.decode({good, flipped}, mode), WireError);
    const std::vector<float> after = harness.output();
    const bool keeps = test_device() == nullptr && (mode == DecodeMode::kAdd || is_sparse());
    if (keeps)
      EXPECT_TRUE(same_values(after, before));
    else
      expect_nan(after);
  }
}

TEST_P(CodecConformance, FlippedBitsOfLongFramesAreFound) {
  CodecHarness harness(spec(), kRuns);
  GuardedBytes frame = harness.encode();
  const std::size_t bits = 8 * frame.span().size(), header = 8 * sizeof(FrameHeader);
  for (std::uint64_t i = 0; i < 24; ++i) {
    const std::size_t bit = i == 0 ? bits - 1 : header + mixed(i) % (bits - header);
    std::byte& byte = frame.span()[bit / 8];
    byte ^= std::byte{1} << bit % 8;
    EXPECT_NE(decode_error(harness, frame).find("checksum"), std::string::npos) << bit;
    byte ^= std::byte{1} << bit % 8;
  }
  EXPECT_EQ(decode_error(harness, frame), "");
}

TEST_P(CodecConformance, ReportsIndexOfDamagedFrame) {
  if (!allows(Exchange::kTwoShot)) GTEST_SKIP() << spec() << " does not reduce";
  CodecHarness harness(spec(), {40'000, 77}, {.contributions = 40});
  const GuardedBytes good = harness.encode();
  for (const std::size_t index : {0, 31, 32, 39}) {
    std::vector<GuardedBytes> frames(40, good);
    const ByteSpan damaged = frames[index].span();
    damaged[damaged.size() - std::min<std::size_t>(damaged.size() / 3, 40'000 / 9)] ^=
        std::byte{16};
    const std::string name = "frame " + std::to_string(index) + " of 40";
    const auto decoding = error_of<WireError>([&] { harness.decode(frames); });
    EXPECT_NE(decoding.find(name), std::string::npos) << decoding;
    const auto reducing = error_of<WireError>([&] { harness.reduce(frames); });
    EXPECT_NE(reducing.find(name), std::string::npos) << reducing;
  }
}

TEST_P(CodecConformance, EveryFlippedBitIsFound) {
  CodecHarness harness(spec(), kSmall);
  GuardedBytes frame = harness.encode();
  ASSERT_EQ(decode_error(harness, frame), "");
  for (std::size_t bit = 0; bit < 8 * frame.span().size(); bit += stride()) {
    std::byte& byte = frame.span()[bit / 8];
    byte ^= std::byte{1} << bit % 8;
    ASSERT_FALSE(decode_error(harness, frame).empty()) << bit;
    byte ^= std::byte{1} << bit % 8;
  }
}

TEST_P(CodecConformance, ChecksumsAreThoseOfTheFormat) {
  CodecHarness harness(spec(), {0, 1000, 300'001}, {.threads = 3});
  const GuardedBytes frame = harness.encode();
  EXPECT_EQ(read_frame_header(frame.span()).checksum, frame_checksum(frame.span()));
  CodecHarness without(spec(), {1000}, {.checksum = Checksum::kOff});
  const FrameHeader header = read_frame_header(without.encode().span());
  EXPECT_EQ(header.checksum, 0u);
  EXPECT_EQ(header.flags & kFrameHasChecksum, 0);
}

/// Decodes, reduces and windows a frame with an arbitrary payload.
void use_anyhow(CodecHarness& harness, const GuardedBytes& frame, bool reduces) {
  error_of<WireError>([&] { harness.decode({frame}); });
  error_of<WireError>([&] { harness.decode({frame, frame}, DecodeMode::kAdd, 0.5f); });
  if (reduces) error_of<WireError>([&] { harness.reduce({frame, frame}); });
  EXPECT_TRUE(harness.intact() && frame.intact());
}

TEST_P(CodecConformance, ArbitraryPayloadsStayInBounds) {
  const bool reduces = allows(Exchange::kTwoShot);
  for_each_isa([&] {
    for (const std::size_t count : {130, 66'000}) {
      CodecHarness harness(spec(), {static_cast<std::size_t>(count)}, {.checksum = Checksum::kOff});
      const GuardedBytes good = harness.encode();
      for (std::uint64_t seed = 0; seed < (grid_is_small() ? 20 : 60); ++seed) {
        GuardedBytes frame = good;
        const ByteSpan payload = frame.span().subspan(sizeof(FrameHeader));
        const std::size_t changes = seed % 3 == 0 ? payload.size() : 1 + seed;
        for (std::size_t i = 0; i < changes && !payload.empty(); ++i)
          payload[mixed(seed * 7919 + i) % payload.size()] =
              static_cast<std::byte>(mixed(seed + 31 * i));
        use_anyhow(harness, frame, reduces);
      }
    }
  });
}

TEST_P(CodecConformance, FlippedBitsTouchNothingOutsideWithoutChecksum) {
  const bool reduces = allows(Exchange::kTwoShot);
  CodecHarness harness(spec(), kSmall, {.checksum = Checksum::kOff});
  GuardedBytes frame = harness.encode();
  for (std::size_t bit = 0; bit < 8 * frame.span().size(); bit += stride()) {
    frame.span()[bit / 8] ^= std::byte{1} << bit % 8;
    use_anyhow(harness, frame, reduces);
    frame.span()[bit / 8] ^= std::byte{1} << bit % 8;
  }
}

/// All outputs of a codec for one list of segments.
struct Outcome {
  std::vector<GuardedBytes> frames;
  std::vector<std::vector<float>> values;

  bool operator==(const Outcome& other) const {
    for (std::size_t i = 0; i < frames.size(); ++i)
      if (!same_bytes(frames[i].span(), other.frames[i].span())) return false;
    for (std::size_t i = 0; i < values.size(); ++i)
      if (!same_values(values[i], other.values[i])) return false;
    return true;
  }
};

Outcome outcome_of(CodecHarness& harness, bool reduces) {
  Outcome outcome;
  for (std::uint64_t rank = 0; rank < 3; ++rank) {
    harness.draw(rank);
    outcome.frames.push_back(harness.encode());
    outcome.values.push_back(harness.residuals_out());
  }
  harness.decode(outcome.frames, DecodeMode::kAssign, 1.0f / 3);
  outcome.values.push_back(harness.outputs());
  harness.decode(outcome.frames, DecodeMode::kAdd, 0.7f);
  outcome.values.push_back(harness.outputs());
  if (reduces) outcome.frames.push_back(harness.reduce({outcome.frames}));
  outcome.values.push_back(harness.residuals_out());
  EXPECT_TRUE(harness.intact());
  return outcome;
}

TEST_P(CodecConformance, EveryInstructionSetWritesTheSameBytes) {
  if (test_device() != nullptr) GTEST_SKIP() << "a device has one instruction set";
  const bool reduces = allows(Exchange::kTwoShot);
  for (const Dtype dtype : kGradientDtypes)
    for (const Dtype residual_dtype : {Dtype::kF32, Dtype::kBf16})
      for (const std::size_t count : kCounts) {
        if (!is_quick(count, dtype) || !is_quick(count, residual_dtype)) continue;
        if (grid_is_small() && dtype == Dtype::kF16 && residual_dtype == Dtype::kBf16) continue;
        SCOPED_TRACE(std::string(dtype_name(dtype)) + " " + std::to_string(count));
        std::vector<Outcome> outcomes;
        for_each_isa([&] {
          CodecHarness harness(spec(), {count, 77},
                               {.dtype = dtype, .residual_dtype = residual_dtype});
          outcomes.push_back(outcome_of(harness, reduces));
        });
        for (const Outcome& outcome : outcomes) EXPECT_TRUE(outcome == outcomes.front());
      }
}

TEST_P(CodecConformance, ManyFramesOnSeveralThreads) {
  const bool reduces = allows(Exchange::kTwoShot);
  const std::size_t count = grid_is_small() ? 40'001 : 400'001;
  std::vector<Outcome> outcomes;
  for (const unsigned threads : {1, 3}) {
    CodecHarness harness(spec(), {count}, {.threads = threads, .contributions = 70});
    std::vector<GuardedBytes> frames;
    for (std::uint64_t rank = 0; rank < 4; ++rank) {
      harness.draw(rank);
      frames.push_back(harness.encode());
    }
    while (frames.size() < 70) frames.push_back(frames[frames.size() % 4]);
    harness.decode(frames);
    outcomes.push_back({{}, {harness.outputs()}});
    if (reduces) outcomes.back().frames.push_back(harness.reduce(frames));
  }
  EXPECT_TRUE(outcomes[0] == outcomes[1]);
}

TEST_P(CodecConformance, ResultIsIndependentOfThreads) {
  if (test_device() != nullptr) GTEST_SKIP() << "host threads do nothing on a device";
  const bool reduces = allows(Exchange::kTwoShot);
  for (const Dtype dtype : kGradientDtypes) {
    const std::size_t longest = dtype == Dtype::kF32 ? 1'000'001 : 200'001;
    std::vector<std::size_t> counts = {5, longest, 0, 70'000, 131'072};
    if (grid_is_small()) counts = {5, 0, 131'073};
    CodecHarness alone(spec(), counts, {.dtype = dtype});
    const Outcome expected = outcome_of(alone, reduces);
    for (unsigned threads = grid_is_small() ? 3 : 2; threads <= 3; ++threads) {
      CodecHarness several(spec(), counts, {.dtype = dtype, .threads = threads});
      EXPECT_TRUE(outcome_of(several, reduces) == expected) << threads;
    }
  }
}

}  // namespace
}  // namespace tersor::test
