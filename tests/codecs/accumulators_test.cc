// Codes in integer accumulators, the summands of a secure sum.
#include <gtest/gtest.h>
#include <tersor/accumulators.h>
#include <tersor/error.h>
#include <tersor/isa.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace tersor {
namespace {

using Bytes = std::vector<std::byte>;

std::vector<float> normal(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> draw;
  std::vector<float> values(count);
  for (float& value : values) value = draw(random);
  return values;
}

Bytes encoded(const std::vector<float>& values, const AccumulatorFormat& format,
              std::uint64_t secret) {
  Bytes accumulators(format.bytes(values.size()));
  encode_accumulators(values, format, secret, accumulators);
  return accumulators;
}

std::vector<float> decoded(const Bytes& accumulators, const AccumulatorFormat& format) {
  std::vector<float> values(accumulators.size() * 8 / format.accumulator_bits);
  decode_accumulators(accumulators, format, values);
  return values;
}

class Accumulators : public ::testing::TestWithParam<unsigned> {};

INSTANTIATE_TEST_SUITE_P(Widths, Accumulators, ::testing::Values(8u, 16u, 32u),
                         [](const auto& accumulators) {
                           return std::to_string(accumulators.param);
                         });

TEST_P(Accumulators, CodesRoundToAdjacentIntegers) {
  for (const std::size_t count : {0u, 1u, 255u, 256u, 257u, 5'000u}) {
    const AccumulatorFormat format{.bits = 8, .accumulator_bits = GetParam(), .scale = 0.03f};
    const auto values = normal(count, 1);
    const auto found = decoded(encoded(values, format, 5), format);
    for (std::size_t i = 0; i < count; ++i) {
      const float wanted = std::clamp(values[i] / 0.03f, -127.0f, 127.0f);
      const float code = found[i] / 0.03f;
      EXPECT_LT(std::abs(code - wanted), 1.001f) << i;
      EXPECT_NEAR(code, std::round(code), 1e-4f) << i;
    }
  }
}

TEST_P(Accumulators, RoundingIsUnbiasedAndDependsOnSecret) {
  const AccumulatorFormat format{.bits = 5, .accumulator_bits = GetParam(), .scale = 0.5f};
  const std::vector<float> values(4'096, 0.8125f);  // 1.625 units
  double sum = 0;
  for (std::uint64_t secret = 1; secret <= 64; ++secret) {
    const auto found = decoded(encoded(values, format, secret), format);
    sum = std::accumulate(found.begin(), found.end(), sum);
  }
  const double deviation = 0.5 * std::sqrt(0.625 * 0.375 / (64 * 4'096));
  EXPECT_NEAR(sum / (64 * 4'096), 0.8125, 5 * deviation);
  EXPECT_NE(encoded(values, format, 1), encoded(values, format, 2));
  EXPECT_EQ(encoded(values, format, 1), encoded(values, format, 1));
}

TEST_P(Accumulators, OutOfRangeValuesAreClippedAndCounted) {
  const AccumulatorFormat format{.bits = 4, .accumulator_bits = GetParam(), .scale = 1};
  const std::vector<float> values{7, -7, 7.5f, -8, 1e30f, -1e30f, 0};
  Bytes accumulators(format.bytes(values.size()));
  EXPECT_EQ(encode_accumulators(values, format, 9, accumulators), 4u);
  EXPECT_EQ(decoded(accumulators, format), (std::vector<float>{7, -7, 7, -7, 7, -7, 0}));
}

/// The sum of a code of at least 9 bits and a random number of 16 bits is inexact in f32.
TEST_P(Accumulators, NoCodeExceedsTheLevels) {
  constexpr std::size_t kCount = 1 << 17;
  for (unsigned bits = 2; bits <= std::min(14u, GetParam()); ++bits) {
    const AccumulatorFormat format{.bits = bits, .accumulator_bits = GetParam(), .scale = 1};
    const auto most = static_cast<float>(format.levels());
    std::vector<float> values(kCount, most);
    for (std::size_t i = 1; i < kCount; i += 4) values[i] = -most;
    for (std::size_t i = 2; i < kCount; i += 4) values[i] = std::nextafter(most, 0.0f);
    const Bytes best = encoded(values, format, 12345);
    const auto codes = decoded(best, format);
    EXPECT_LE(*std::ranges::max_element(codes), most) << bits;
    EXPECT_GE(*std::ranges::min_element(codes), -most) << bits;
    for (const Isa isa : available_isas()) {
      force_isa(isa);
      EXPECT_EQ(encoded(values, format, 12345), best) << bits << isa_name(isa);
    }
    force_isa({});
  }
}

TEST_P(Accumulators, MultiplesOfTheScaleDecodeExactly) {
  const AccumulatorFormat format{
      .bits = std::min(14u, GetParam()), .accumulator_bits = GetParam(), .scale = 0.5f};
  std::vector<float> values(1 << 16);
  const int levels = static_cast<int>(format.levels());
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = 0.5f * static_cast<float>(static_cast<int>(i) % (2 * levels + 1) - levels);
  EXPECT_EQ(decoded(encoded(values, format, 7), format), values);
}

TEST_P(Accumulators, SubtractingMasksRestoresTheSum) {
  const AccumulatorFormat format{.bits = 6, .accumulator_bits = GetParam(), .scale = 0.125f};
  std::mt19937 random(3);
  Bytes plain, masked;
  for (unsigned rank = 0; rank < 4; ++rank) {
    Bytes codes = encoded(normal(1'000, rank), format, rank);
    if (rank == 0) plain.assign(codes.size(), std::byte{}), masked = plain;
    add_accumulators(plain, codes, format.accumulator_bits);
    Bytes mask(codes.size());
    for (std::byte& byte : mask) byte = static_cast<std::byte>(random());
    add_accumulators(codes, mask, format.accumulator_bits);
    add_accumulators(masked, codes, format.accumulator_bits);
    subtract_accumulators(masked, mask, format.accumulator_bits);
  }
  EXPECT_EQ(masked, plain);
}

TEST_P(Accumulators, InstructionSetsGiveEqualResults) {
  const AccumulatorFormat format{.bits = 8, .accumulator_bits = GetParam(), .scale = 0.02f};
  const auto values = normal(3'333, 7);
  const Bytes best = encoded(values, format, 77);
  const auto sums = decoded(best, format);
  for (const Isa isa : available_isas()) {
    force_isa(isa);
    EXPECT_EQ(encoded(values, format, 77), best) << isa_name(isa);
    EXPECT_EQ(decoded(best, format), sums) << isa_name(isa);
  }
  force_isa({});
}

TEST(AccumulatorsErrors, RejectsPartialOverlaps) {
  std::vector<float> values(64, 1.0f);
  const AccumulatorFormat format{.bits = 4, .accumulator_bits = 16, .scale = 1.0f};
  const auto bytes = std::as_writable_bytes(std::span(values));
  EXPECT_THROW(encode_accumulators(std::span(values).first(32), format, 1, bytes.first(64)),
               InvalidArgumentError);
  EXPECT_THROW(decode_accumulators(bytes.first(64), format, std::span(values).first(32)),
               InvalidArgumentError);
  EXPECT_THROW(add_accumulators(bytes.subspan(4, 64), bytes.first(64), 32), InvalidArgumentError);
  add_accumulators(bytes.first(64), bytes.first(64), 32);  // the same memory
  decode_accumulators(bytes, {.bits = 4, .accumulator_bits = 32, .scale = 1.0f}, values);
}

TEST(AccumulatorsErrors, RejectsInvalidInputAndLeavesZeros) {
  Bytes accumulators(16, std::byte{1});
  std::vector<float> values(8);
  const auto complaint = [&](const AccumulatorFormat& format) -> std::string {
    try {
      encode_accumulators(values, format, 1, accumulators);
    } catch (const InvalidArgumentError& error) {
      return error.what();
    }
    return "none";
  };
  EXPECT_EQ(complaint({}), "none");
  EXPECT_NE(complaint({.accumulator_bits = 12}).find("give 8, 16 or 32"), std::string::npos);
  EXPECT_NE(complaint({.bits = 9, .accumulator_bits = 8}).find("give 2 to 8"), std::string::npos);
  EXPECT_NE(complaint({.bits = 15}).find("give 2 to 14"), std::string::npos);
  EXPECT_NE(complaint({.bits = 1}).find("give 2 to 14"), std::string::npos);
  for (const float scale : {0.0f, -1.0f, std::numeric_limits<float>::quiet_NaN(),
                            std::numeric_limits<float>::infinity()})
    EXPECT_NE(complaint({.scale = scale}).find("the scale is"), std::string::npos) << scale;
  EXPECT_NE(complaint({.accumulator_bits = 32}).find("8 values, which take 32"), std::string::npos);
  values[7] = std::numeric_limits<float>::infinity();
  values[3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_NE(complaint({}).find("2 values are not finite"), std::string::npos);
  EXPECT_EQ(accumulators, Bytes(16));
  EXPECT_THROW(add_accumulators(accumulators, Bytes(8), 16), InvalidArgumentError);
  Bytes odd(5);
  EXPECT_THROW(add_accumulators(odd, odd, 16), InvalidArgumentError);
}

}  // namespace
}  // namespace tersor
