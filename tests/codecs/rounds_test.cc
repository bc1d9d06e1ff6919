// The contract of codecs of several rounds, proven by one that lives here only: an integer sum with
// scales that all ranks share. Round 0: the largest magnitude of each block, a native maximum of
// bits; `absorb` makes scales of them. Round 1: codes, a native sum of i8. One quantisation, and
// the sum is exact, in whatever order it is taken. (THC, Li et al. 2024, without its transform.)

#include "tests/support/codec_harness.h"
#include "tests/support/reference.h"

#include <tersor/align.h>
#include <tersor/buffer.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace tersor::test {
namespace {

constexpr std::size_t kBlock = 256;

std::size_t blocks_of(std::span<const Segment> segments) {
  std::size_t blocks = 0;
  for (const Segment& segment : segments) blocks += ceil_div(segment.count, kBlock);
  return blocks;
}

/// Codes of all ranks together fit an i8.
int levels_of(std::size_t contributions) { return 127 / static_cast<int>(contributions); }

class SharedScaleCodec final : public Codec {
 public:
  SharedScaleCodec() : Codec(parse_spec("shared+ef"), 900) {}

  CodecTraits traits() const override { return {}; }

 protected:
  PlanSizes plan_sizes(const PlanRequest& request) const override {
    if (levels_of(request.contributions) < 1) throw InvalidArgument("too many ranks for 8 bits");
    return {.frame_bytes = sizeof(FrameHeader),
            .kept_bytes = blocks_of(request.segments) * sizeof(float)};
  }

  std::vector<Round> plan_rounds(const PlanRequest& request) const override {
    std::size_t count = 0;
    for (const Segment& segment : request.segments) count += segment.count;
    return {{{Exchange::kNativeMaximum}, Dtype::kU32, blocks_of(request.segments)},
            {{Exchange::kNativeSum}, Dtype::kI8, count}};
  }

  void do_encode(const EncodeCall&, ByteSpan) const override { throw InvalidArgument("native"); }
  void do_decode(const DecodeCall&) const override { throw InvalidArgument("native"); }

  void do_encode_native(const EncodeCall& call, float factor, ValueSpan values) const override {
    for_each_value(call.segments, [&, i = std::size_t{0}](const Place& place) mutable {
      const float p = sent(call, place) * factor;
      if (call.identity.round == 0) {
        auto& most = values.as<std::uint32_t>()[place.block];
        most = std::max(place.index % kBlock == 0 ? 0 : most, bits(p) & 0x7fffffff);
      } else {
        const float scale = scales(call.execution)[place.block];
        const float code = scale == 0 ? 0 : std::nearbyint(p / scale);
        values.as<std::int8_t>()[i++] = static_cast<std::int8_t>(code);
        call.states[place.segment].residual_out.as<float>()[place.index] =
            (p - code * scale) / factor;
      }
    });
  }

  void do_absorb(const DecodeCall& call, ConstValueSpan values) const override {
    const auto levels = static_cast<float>(levels_of(call.contributions));
    const auto most = values.as<std::uint32_t>();
    for (std::size_t block = 0; block < most.size(); ++block)
      scales(call.execution)[block] = from_bits(most[block]) / levels;
  }

  void do_decode_native(const DecodeCall& call, ConstValueSpan values) const override {
    for_each_value(call.segments, [&, i = std::size_t{0}](const Place& place) mutable {
      const float scale = scales(call.execution)[place.block] * call.factor;
      call.outputs[place.segment].as<float>()[place.index] =
          static_cast<float>(values.as<std::int8_t>()[i++]) * scale;
    });
  }

 private:
  struct Place {
    std::size_t segment, index, block;
  };

  template <typename Visitor>
  static void for_each_value(std::span<const Segment> segments, Visitor visit) {
    std::size_t blocks = 0;
    for (std::size_t segment = 0; segment < segments.size(); ++segment) {
      for (std::size_t i = 0; i < segments[segment].count; ++i)
        visit(Place{segment, i, blocks + i / kBlock});
      blocks += ceil_div(segments[segment].count, kBlock);
    }
  }

  static float* scales(const Execution& execution) {
    return reinterpret_cast<float*>(execution.kept.data());
  }

  static float sent(const EncodeCall& call, const Place& place) {
    return call.gradients[place.segment].as<float>()[place.index] +
           call.states[place.segment].residual_in.as<float>()[place.index];
  }
};

/// One rank: what it holds, and its calls.
struct Rank {
  std::vector<std::vector<float>> gradients, residuals, outputs;
  Buffer kept;
  std::vector<ConstValueSpan> gradient_spans = {};
  std::vector<SegmentState> states = {};
  std::vector<ValueSpan> output_spans = {};

  Rank(const std::vector<Segment>& segments, std::size_t kept_bytes, std::uint64_t seed)
      : kept(kept_bytes) {
    for (const Segment& segment : segments) {
      gradients.push_back(gaussian(segment.count, seed++));
      residuals.push_back(gaussian(segment.count, seed++, 0.1f));
      outputs.emplace_back(segment.count);
    }
    for (std::size_t i = 0; i < segments.size(); ++i) {
      gradient_spans.emplace_back(gradients[i]);
      states.push_back({residuals[i], residuals[i]});
      output_spans.emplace_back(outputs[i]);
    }
  }

  Execution execution() const {
    Execution execution;
    execution.kept = kept.span();
    return execution;
  }
};

TEST(Rounds, ASharedScaleSumsIntegersExactly) {
  const std::vector<Segment> segments = {{.count = 700}, {.count = 0}, {.count = 300}};
  constexpr std::size_t kRanks = 5;
  const SharedScaleCodec codec;
  const Plan plan = codec.plan({.segments = segments, .contributions = kRanks});
  ASSERT_EQ(plan.rounds.size(), 2u);
  std::vector<Rank> ranks;
  std::vector<double> expected(1000);  // what should come out: the sum of all p
  for (std::uint64_t rank = 0; rank < kRanks; ++rank) {
    ranks.emplace_back(segments, plan.kept_bytes, 10 * rank);
    for (std::size_t i = 0; i < 1000; ++i) {
      const std::size_t segment = i < 700 ? 0 : 2, index = i < 700 ? i : i - 700;
      expected[i] += ranks[rank].gradients[segment][index] + ranks[rank].residuals[segment][index];
    }
  }
  const auto encode = [&](Rank& rank, std::uint8_t round, ValueSpan values) {
    codec.encode_native({.segments = segments,
                         .gradients = rank.gradient_spans,
                         .states = rank.states,
                         .identity = {.round = round},
                         .execution = rank.execution(),
                         .contributions = kRanks},
                        1.0f, values);
  };
  const auto back = [&](Rank& rank, std::uint8_t round) {
    return DecodeCall{.segments = segments,
                      .frames = {},
                      .outputs = rank.output_spans,
                      .identity = {.round = round},
                      .execution = rank.execution(),
                      .contributions = kRanks};
  };
  // Round 0, as a transport's native maximum would do it.
  std::vector<std::uint32_t> maxima(plan.rounds[0].native_count), own(maxima.size());
  for (Rank& rank : ranks) {
    encode(rank, 0, own);
    for (std::size_t i = 0; i < own.size(); ++i) maxima[i] = std::max(maxima[i], own[i]);
  }
  for (Rank& rank : ranks) codec.absorb(back(rank, 0), maxima);
  // Round 1: a native sum of i8.
  std::vector<std::int8_t> sums(plan.rounds[1].native_count), codes(sums.size());
  for (Rank& rank : ranks) {
    encode(rank, 1, codes);
    for (std::size_t i = 0; i < codes.size(); ++i)
      sums[i] = static_cast<std::int8_t>(sums[i] + codes[i]);
  }
  for (Rank& rank : ranks) codec.decode_native(back(rank, 1), sums);

  for (std::size_t i = 0; i < 1000; ++i) {
    const std::size_t segment = i < 700 ? 0 : 2, index = i < 700 ? i : i - 700;
    double all = ranks[0].outputs[segment][index];
    for (const Rank& rank : ranks) {
      ASSERT_EQ(rank.outputs[segment][index], ranks[0].outputs[segment][index]);
      all += rank.residuals[segment][index];
    }
    ASSERT_NEAR(all, expected[i], 1e-5) << i;  // nothing is lost: it waits in the residuals
  }
}

TEST(Rounds, KeptMemoryIsChecked) {
  const std::vector<Segment> segments = {{.count = 700}};
  const SharedScaleCodec codec;
  Rank rank(segments, 64, 1);
  std::vector<std::uint32_t> maxima(3);
  EncodeCall call{.segments = segments,
                  .gradients = rank.gradient_spans,
                  .states = rank.states,
                  .execution = rank.execution()};
  codec.encode_native(call, 1.0f, maxima);
  call.execution.kept = call.execution.kept.first(11);
  EXPECT_THROW(codec.encode_native(call, 1.0f, maxima), InvalidArgument);
  EXPECT_THROW(codec.plan({.segments = segments, .contributions = 128}), InvalidArgument);
}

}  // namespace
}  // namespace tersor::test
