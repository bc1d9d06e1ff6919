// int8 and int4: every instruction set gives the bytes defined by the format, and the format's
// guarantees hold.

#include "kernels/quantize/int4.h"
#include "kernels/quantize/int8.h"
#include "kernels/quantize/kernels.h"
#include "tests/kernels/reference.h"

#include <gtest/gtest.h>

#include <string>
#include <tuple>

namespace tersor::kernels {
namespace {

using reference::ForcedIsa;

struct Codec {
  const char* name;
  int levels;
  std::size_t block;
  unsigned bits;
  QuantizeLoops (*loops)();

  std::size_t blocks(std::size_t count) const { return (count + block - 1) / block; }
  std::size_t bytes(std::size_t count) const { return (count * bits + 7) / 8; }
};

[[maybe_unused]] void PrintTo(const Codec& codec, std::ostream* stream) { *stream << codec.name; }

constexpr Codec kCodecs[] = {
    {"int8", 127, 256, 8, quantize_loops<Int8Format>},
    {"int4", 7, 128, 4, quantize_loops<Int4Format>},
};
constexpr std::size_t kCounts[] = {0,   1,   2,   63,  127, 128, 129,  255, 256,
                                   257, 383, 511, 512, 513, 769, 1021, 4099};
constexpr Dtype kDtypes[] = {Dtype::kF32, Dtype::kBf16, Dtype::kF16};

/// A range of values: inputs and all output bytes, including margins.
struct Range {
  const Codec& codec;
  std::size_t count;
  Rounding rounding = Rounding::kNearest;
  std::uint64_t first_index = 0;
  Store store = Store::kCached;
  std::vector<std::byte> residual_in = {}, residual_out = {};
  Dtype residual_dtype = Dtype::kF32;
  bool has_residual = false, in_place = false;
  std::size_t offset = 0;  // bytes from a cache line's start to every span of values
  float gradient_factor = 1, residual_factor = 1;
  std::vector<float> scales = {};
  std::vector<std::byte> codes = {};

  static constexpr std::uint64_t kKey = 0x0123456789abcdefu;
  static constexpr std::uint32_t kStep = 77, kParameter = 5;

  void clear_outputs() {
    scales.assign(codec.blocks(count) + 2, -1.0f);
    codes.assign(offset + codec.bytes(count) + 64, std::byte{0xcd});
  }

  const std::byte* old_residual() const { return residual_in.data() + offset; }
  std::byte* new_residual() { return (in_place ? residual_in : residual_out).data() + offset; }

  ErrorFeedback feedback() {
    if (!has_residual) return {};
    return {.residual_in = old_residual(),
            .residual_out = new_residual(),
            .dtype = residual_dtype,
            .gradient_factor = gradient_factor,
            .residual_factor = residual_factor,
            .store = store};
  }
  Noise noise() const { return {rounding, kKey, kStep, kParameter, first_index}; }
  QuantizeOutput output() { return {scales.data(), codes.data() + offset, store}; }

  void set_code(std::size_t index, int code) {
    std::byte& byte = codes[offset + index * codec.bits / 8];
    if (codec.bits == 8)
      byte = static_cast<std::byte>(code);
    else if (index % 2 == 0)
      byte = static_cast<std::byte>(code & 0xf);
    else
      byte |= static_cast<std::byte>((code & 0xf) << 4);
  }

  /// Quantizes p according to the format.
  void quantize(const std::vector<float>& p) {
    for (std::size_t first = 0; first < count; first += codec.block)
      quantize_block(p, first, std::min(first + codec.block, count));
  }

  void quantize_block(const std::vector<float>& p, std::size_t first, std::size_t end) {
    float absmax = 0;
    bool poisoned = false;
    for (std::size_t i = first; i < end; ++i) {
      poisoned |= !std::isfinite(p[i]);
      absmax = std::max(absmax, std::abs(p[i]));
    }
    float q = reference::product(absmax, 1.0f / static_cast<float>(codec.levels));
    if (q < 0x1p-100f) q = 0;
    const float inverse = q == 0 ? 0 : static_cast<float>(1.0 / q);
    scales[first / codec.block] = poisoned ? std::bit_cast<float>(0x7fc00000u) : q;
    for (std::size_t i = first; i < end; ++i) {
      const int code = poisoned ? 0 : code_of(double{p[i]} * inverse, i);
      set_code(i, code);
      if (has_residual)
        set_residual(i, p[i], reference::product(static_cast<float>(code), q), poisoned);
    }
  }

  int code_of(double steps, std::size_t index) const {
    if (rounding == Rounding::kNearest) return static_cast<int>(std::nearbyint(steps));
    const int byte = reference::noise(first_index + index, kKey, kStep, kParameter);
    return static_cast<int>(std::floor((std::nearbyint(steps * 256) + byte) / 256));
  }

  void set_residual(std::size_t index, float p, float decoded, bool keep) {
    const std::size_t bytes = dtype_bytes(residual_dtype);
    if (keep)
      std::memmove(new_residual() + index * bytes, old_residual() + index * bytes, bytes);
    else
      reference::store(reference::sum(p, -decoded), new_residual(), residual_dtype, index);
  }

  float old_residual_value(std::size_t index) const {
    return reference::load(old_residual(), residual_dtype, index);
  }
};

void expect_equal(const Range& got, const Range& want, const std::string& what) {
  ASSERT_EQ(std::memcmp(got.scales.data(), want.scales.data(), want.scales.size() * 4), 0)
      << "scales: " << what;
  ASSERT_EQ(got.codes, want.codes) << "codes: " << what;
  ASSERT_EQ(got.residual_in, want.residual_in) << "residual in: " << what;
  ASSERT_EQ(got.residual_out, want.residual_out) << "residual out: " << what;
}

class Quantize : public ::testing::TestWithParam<std::tuple<Codec, Isa>> {
 protected:
  const Codec codec_ = std::get<0>(GetParam());
  const ForcedIsa isa_{std::get<1>(GetParam())};
  std::mt19937_64 random_{20261120};

  /// Random rounding, residual, alignment and store for a count.
  Range random_range(std::size_t count) {
    Range range{codec_, count, random_() % 2 ? Rounding::kNearest : Rounding::kStochastic};
    const std::uint64_t firsts[] = {0, 512, 77, 128, (1ull << 37) + 1029, 511};
    range.first_index = firsts[random_() % 6];
    range.store = random_() % 2 ? Store::kCached : Store::kStreaming;
    range.offset = 4 * (random_() % 2 ? 0 : random_() % 24);
    range.has_residual = random_() % 3 != 0;
    range.in_place = random_() % 2;
    range.residual_dtype = random_() % 2 ? Dtype::kF32 : Dtype::kBf16;
    if (random_() % 2) range.gradient_factor = 0.7f, range.residual_factor = -1.25f;
    auto residual = reference::values_of_all_kinds(count, random_);
    if (random_() % 4 == 0) reference::spoil(residual, 300, random_);
    range.residual_in = reference::as_bytes(residual, range.residual_dtype, range.offset);
    range.residual_out.assign(range.residual_in.size(), std::byte{0xef});
    range.clear_outputs();
    return range;
  }

  std::vector<float> gradient(std::size_t count) {
    auto values = reference::values_of_all_kinds(count, random_);
    if (random_() % 2) reference::spoil(values, 500, random_);
    return values;
  }
};

std::string describe(const Range& range, Dtype dtype) {
  return std::string(range.codec.name) + " " + std::string(dtype_name(dtype)) + " count " +
         std::to_string(range.count) + " rounding " +
         std::to_string(static_cast<int>(range.rounding)) + " first " +
         std::to_string(range.first_index) + " residual " +
         (range.has_residual ? std::string(dtype_name(range.residual_dtype)) : "none") +
         " in place " + std::to_string(range.in_place) + " offset " + std::to_string(range.offset) +
         " store " + std::to_string(static_cast<int>(range.store));
}

TEST_P(Quantize, EncodeMatchesReference) {
  for (int round = 0; round < 40; ++round)
    for (const std::size_t count : kCounts)
      for (const Dtype dtype : kDtypes) {
        Range got = random_range(count);
        const auto bytes = reference::as_bytes(gradient(count), dtype, got.offset);
        const std::byte* values = bytes.data() + got.offset;
        Range want = got;
        std::vector<float> p(count);
        for (std::size_t i = 0; i < count; ++i) {
          p[i] = reference::load(values, dtype, i);
          if (got.has_residual)
            p[i] =
                reference::sum(reference::product(got.gradient_factor, p[i]),
                               reference::product(got.residual_factor, got.old_residual_value(i)));
        }
        want.quantize(p);
        codec_.loops().encode({{values, dtype, count, got.feedback()}, got.noise(), got.output()});
        ASSERT_NO_FATAL_FAILURE(expect_equal(got, want, describe(got, dtype)));
      }
}

/// Random bytes as payloads: every code including -128, and arbitrary scale bits.
struct RandomPayloads {
  RandomPayloads(const Codec& codec, std::size_t ranks, std::size_t count, bool any_scale,
                 std::mt19937_64& random)
      : scales(ranks), codes(ranks) {
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      for (std::size_t i = 0; i < codec.blocks(count); ++i) {
        const float usual = 1e-3f * static_cast<float>(random() % 1000);
        scales[rank].push_back(any_scale && random() % 4 == 0
                                   ? std::bit_cast<float>(static_cast<std::uint32_t>(random()))
                                   : usual);
      }
      for (std::size_t i = 0; i < codec.bytes(count); ++i)
        codes[rank].push_back(static_cast<std::byte>(random()));
      views.push_back({scales[rank].data(), codes[rank].data()});
    }
  }

  float code(const Codec& codec, std::size_t rank, std::size_t index) const {
    if (codec.bits == 8) return static_cast<float>(static_cast<std::int8_t>(codes[rank][index]));
    const int nibble = static_cast<int>(codes[rank][index / 2]) >> (index % 2 * 4) & 0xf;
    return static_cast<float>(nibble >= 8 ? nibble - 16 : nibble);
  }

  std::vector<std::vector<float>> scales;
  std::vector<std::vector<std::byte>> codes;
  std::vector<QuantizedView> views;
};

void expect_same_values(const std::vector<std::byte>& got, const std::vector<std::byte>& want,
                        Dtype dtype, const std::string& what) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size() / dtype_bytes(dtype); ++i) {
    const float a = reference::load(got.data(), dtype, i);
    const float b = reference::load(want.data(), dtype, i);
    if (std::isnan(a) && std::isnan(b)) continue;
    ASSERT_EQ(std::bit_cast<std::uint32_t>(a), std::bit_cast<std::uint32_t>(b))
        << what << " value " << i << ": " << a << " for " << b;
  }
}

TEST_P(Quantize, DecodeMatchesReferenceForAnyBytes) {
  for (const std::size_t count : kCounts)
    for (const Dtype dtype : kDtypes)
      for (const std::size_t ranks : {0, 1, 2, 3, 5})
        for (const DecodeMode mode : {DecodeMode::kAssign, DecodeMode::kAdd})
          for (const Store store : {Store::kCached, Store::kStreaming}) {
            const std::size_t offset = dtype_bytes(dtype) * (random_() % 20);
            const float factor = random_() % 2 ? 1.0f : 1.0f / 3;
            const RandomPayloads payloads(codec_, ranks, count, true, random_);
            auto got =
                reference::as_bytes(reference::values_of_all_kinds(count, random_), dtype, offset);
            auto want = got;
            for (std::size_t i = 0; i < count; ++i) {
              float sum = reference::load(want.data() + offset, dtype, i);
              if (ranks == 0 && mode == DecodeMode::kAssign) sum = 0;
              for (std::size_t rank = 0; rank < ranks; ++rank) {
                const float code = payloads.code(codec_, rank, i);
                const float scale =
                    reference::product(payloads.scales[rank][i / codec_.block], factor);
                sum = rank == 0 && mode == DecodeMode::kAssign ? reference::product(code, scale)
                                                               : std::fma(code, scale, sum);
              }
              reference::store_decoded(sum, want.data() + offset, dtype, i);
            }
            codec_.loops().decode(
                {payloads.views, count, {got.data() + offset, dtype, factor, mode, store}});
            ASSERT_NO_FATAL_FAILURE(expect_same_values(
                got, want, dtype,
                std::to_string(count) + " values, ranks " + std::to_string(ranks) + " " +
                    std::string(dtype_name(dtype)) + " offset " + std::to_string(offset)));
          }
}

TEST_P(Quantize, ReducesInRankOrder) {
  for (int round = 0; round < 10; ++round)
    for (const std::size_t count : kCounts)
      for (const std::size_t ranks : {1, 2, 3, 8}) {
        Range got = random_range(count);
        const RandomPayloads payloads(codec_, ranks, count, round % 2, random_);
        Range want = got;
        const float factor = random_() % 2 ? 1.0f : 1.0f / 3;
        std::vector<float> p(count);
        for (std::size_t i = 0; i < count; ++i) {
          for (std::size_t rank = 0; rank < ranks; ++rank) {
            const float scale = reference::product(payloads.scales[rank][i / codec_.block], factor);
            p[i] = std::fma(payloads.code(codec_, rank, i), scale, p[i]);
          }
          if (got.has_residual)
            p[i] = reference::sum(
                p[i], reference::product(got.residual_factor, got.old_residual_value(i)));
        }
        want.quantize(p);
        codec_.loops().reduce(
            {payloads.views, count, factor, got.feedback(), got.noise(), got.output()});
        ASSERT_NO_FATAL_FAILURE(expect_equal(got, want, describe(got, Dtype::kF32)));
      }
}

TEST_P(Quantize, DecodedPlusResidualEqualsGradient) {
  constexpr std::size_t kCount = 1 << 17;
  auto gradient = reference::values_of_all_kinds(kCount, random_);
  std::vector<float> residual(kCount), scales(kCount / codec_.block), decoded(kCount);
  std::vector<std::byte> codes(codec_.bytes(kCount));
  const ErrorFeedback feedback{.residual_in = residual.data(), .residual_out = residual.data()};
  codec_.loops().encode(
      {{gradient.data(), Dtype::kF32, kCount, feedback}, {}, {scales.data(), codes.data()}});
  const QuantizedView view{scales.data(), codes.data()};
  codec_.loops().decode({{&view, 1}, kCount, {.output = decoded.data(), .dtype = Dtype::kF32}});
  for (std::size_t i = 0; i < kCount; ++i) {
    ASSERT_EQ(double{decoded[i]} + double{residual[i]}, double{gradient[i]}) << i;
    ASSERT_LE(std::abs(residual[i]), std::max(scales[i / codec_.block] * 0.50001f, 0x1p-92f)) << i;
  }
}

TEST_P(Quantize, StochasticRoundingIsUnbiased) {
  constexpr std::size_t kCount = 1 << 20;
  for (const float value : {0.1f, 0.5f, -0.77f}) {
    std::vector<float> gradient(kCount, value), scales(kCount / codec_.block), decoded(kCount);
    for (std::size_t i = 0; i < kCount; i += codec_.block)
      gradient[i] = static_cast<float>(codec_.levels);  // a step is 1
    std::vector<std::byte> codes(codec_.bytes(kCount));
    codec_.loops().encode({{gradient.data(), Dtype::kF32, kCount},
                           {.rounding = Rounding::kStochastic, .key = 1},
                           {scales.data(), codes.data()}});
    const QuantizedView view{scales.data(), codes.data()};
    codec_.loops().decode({{&view, 1}, kCount, {.output = decoded.data(), .dtype = Dtype::kF32}});
    double error = 0;
    for (std::size_t i = 0; i < kCount; ++i) error += double{decoded[i]} - gradient[i];
    // 1/512 of a step plus five standard deviations of the mean.
    EXPECT_NEAR(error / kCount, 0, 1.0 / 512 + 5 * 0.5 / 1024) << value;
  }
}

std::string parameter_name(const ::testing::TestParamInfo<std::tuple<Codec, Isa>>& info) {
  return std::string(std::get<0>(info.param).name) + "_" +
         std::string(isa_name(std::get<1>(info.param)));
}
INSTANTIATE_TEST_SUITE_P(Cpu, Quantize,
                         ::testing::Combine(::testing::ValuesIn(kCodecs),
                                            ::testing::ValuesIn(available_isas())),
                         parameter_name);

}  // namespace
}  // namespace tersor::kernels
