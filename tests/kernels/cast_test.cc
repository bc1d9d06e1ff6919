// none, bf16 and f16: every instruction set gives the values defined by the format.

#include "kernels/cast/formats.h"
#include "kernels/cast/kernels.h"
#include "tests/kernels/reference.h"

#include <gtest/gtest.h>

#include <string>
#include <tuple>

namespace tersor::kernels {
namespace {

using reference::ForcedIsa;

/// A codec with a common signature. `wire` maps the gradient dtype to the dtype of the frame's
/// values.
struct CastCodec {
  const char* name;
  Dtype (*wire)(Dtype dtype);
  CastLoops (*loops)();
  bool has_rounding;
};

template <class Format>
constexpr CastCodec kCodec = {Format::kName.data(),
                              [](Dtype dtype) {
                                return visit_gradient_dtype(dtype, []<typename G>(G) {
                                  return DtypeOf<typename Format::template Wire<G>>::value;
                                });
                              },
                              cast_loops<Format>, Format::kHasRounding};
constexpr CastCodec kCastCodecs[] = {kCodec<NoneFormat>, kCodec<Bf16Format>, kCodec<F16Format>};
constexpr std::size_t kCastCounts[] = {0, 1, 2, 15, 16, 17, 255, 256, 257, 511, 513, 1021, 4099};
constexpr Dtype kCastDtypes[] = {Dtype::kF32, Dtype::kBf16, Dtype::kF16};

[[maybe_unused]] void PrintTo(const CastCodec& codec, std::ostream* stream) {
  *stream << codec.name;
}

/// A range of values with its residual, including margins.
struct CastRange {
  std::size_t count;
  Dtype wire;
  Store store = Store::kCached;
  bool has_residual = false, in_place = false;
  Dtype residual_dtype = Dtype::kF32;
  std::size_t offset = 0;  // values from a cache line's start
  float gradient_factor = 1, residual_factor = 1;
  Noise noise = {};
  std::vector<std::byte> residual_in = {}, residual_out = {}, values = {};

  std::byte* wire_values() { return values.data() + offset * dtype_bytes(wire); }
  std::byte* old_residual() { return residual_in.data() + offset * dtype_bytes(residual_dtype); }
  std::byte* new_residual() {
    return (in_place ? residual_in : residual_out).data() + offset * dtype_bytes(residual_dtype);
  }
  ErrorFeedback feedback() {
    if (!has_residual) return {};
    return {old_residual(),  new_residual(),  residual_dtype,
            gradient_factor, residual_factor, store};
  }

  /// Writes p according to the format. Returns the number of finite values overflowing f16.
  std::size_t write(const std::vector<float>& p) {
    std::size_t overflows = 0;
    for (std::size_t i = 0; i < count; ++i) {
      const float old = has_residual ? reference::load(old_residual(), residual_dtype, i) : 0.0f;
      store_wire(p[i], i);
      const float decoded = reference::load(wire_values(), wire, i);
      overflows += wire == Dtype::kF16 && std::isfinite(p[i]) && std::isinf(decoded);
      if (has_residual)
        reference::store(std::isfinite(decoded) ? reference::sum(p[i], -decoded) : old,
                         new_residual(), residual_dtype, i);
    }
    return overflows;
  }

 private:
  /// Rounds a value of p for the frame. All NaNs become the same NaN.
  void store_wire(float p, std::size_t index) {
    if (wire == Dtype::kF32 && std::isnan(p)) p = std::bit_cast<float>(0x7fc00000u);
    if (noise.rounding == Rounding::kNearest)
      return reference::store(p, wire_values(), wire, index);
    reinterpret_cast<std::uint16_t*>(wire_values())[index] = reference::stochastic_bf16(
        p,
        reference::wide_noise(noise.first_index + index, noise.key, noise.step, noise.parameter));
  }
};

class Cast : public ::testing::TestWithParam<std::tuple<CastCodec, Isa>> {
 protected:
  const CastCodec codec_ = std::get<0>(GetParam());
  const ForcedIsa isa_{std::get<1>(GetParam())};
  std::mt19937_64 random_{11};

  std::vector<float> values(std::size_t count) {
    auto values = reference::values_of_all_kinds(count, random_);
    if (random_() % 2) reference::spoil(values, 50, random_);
    return values;
  }

  CastRange random_range(std::size_t count, Dtype wire) {
    CastRange range{count, wire};
    range.store = random_() % 2 ? Store::kCached : Store::kStreaming;
    range.has_residual = random_() % 3 != 0;
    range.in_place = random_() % 2;
    range.residual_dtype = random_() % 2 ? Dtype::kF32 : Dtype::kBf16;
    range.offset = random_() % 2 ? 0 : random_() % 40;
    if (random_() % 2) range.gradient_factor = 0.3f, range.residual_factor = -1.5f;
    if (codec_.has_rounding && random_() % 2)
      range.noise = {Rounding::kStochastic, random_(), 3, 4, random_() % 5000};
    const auto residual = reference::values_of_all_kinds(count, random_);
    range.residual_in = reference::as_bytes(residual, range.residual_dtype,
                                            range.offset * dtype_bytes(range.residual_dtype));
    range.residual_out.assign(range.residual_in.size(), std::byte{0xef});
    range.values.assign((range.offset + count) * dtype_bytes(wire) + 64, std::byte{0xcd});
    return range;
  }
};

void expect_equal_casts(const CastRange& got, const CastRange& want, const std::string& what) {
  ASSERT_EQ(got.values, want.values) << what;
  ASSERT_EQ(got.residual_in, want.residual_in) << what;
  ASSERT_EQ(got.residual_out, want.residual_out) << what;
}

std::string describe(const CastRange& range) {
  return "count " + std::to_string(range.count) + " wire " + std::string(dtype_name(range.wire)) +
         " residual " +
         (range.has_residual ? std::string(dtype_name(range.residual_dtype)) : "none") +
         " in place " + std::to_string(range.in_place) + " offset " + std::to_string(range.offset) +
         " store " + std::to_string(static_cast<int>(range.store)) + " rounding " +
         std::to_string(static_cast<int>(range.noise.rounding));
}

TEST_P(Cast, EncodeAndResidualMatchReference) {
  for (int round = 0; round < 30; ++round)
    for (const std::size_t count : kCastCounts)
      for (const Dtype dtype : kCastDtypes) {
        CastRange got = random_range(count, codec_.wire(dtype));
        const std::size_t offset = got.offset * dtype_bytes(dtype);
        const auto gradient = reference::as_bytes(values(count), dtype, offset);
        const bool is_mean = got.noise.rounding == Rounding::kNearest && random_() % 2;
        const float factor = is_mean ? 0.25f / 3 : 1.0f;  // only without a residual
        CastRange want = got;
        std::vector<float> p(count);
        for (std::size_t i = 0; i < count; ++i) {
          p[i] = reference::load(gradient.data() + offset, dtype, i);
          if (!got.has_residual)
            p[i] = reference::product(p[i], factor);
          else
            p[i] = reference::sum(
                reference::product(got.gradient_factor, p[i]),
                reference::product(got.residual_factor,
                                   reference::load(got.old_residual(), got.residual_dtype, i)));
        }
        const std::size_t overflows = want.write(p);
        if (codec_.name == std::string("none") && !got.has_residual && factor == 1)  // bitwise
          std::memcpy(want.wire_values(), gradient.data() + offset, count * dtype_bytes(dtype));
        EXPECT_EQ(
            codec_.loops().encode({.sent = {gradient.data() + offset, dtype, count, got.feedback()},
                                   .output = {.values = got.wire_values(), .store = got.store},
                                   .factor = factor,
                                   .noise = got.noise}),
            overflows);
        ASSERT_NO_FATAL_FAILURE(expect_equal_casts(got, want, describe(got)));
      }
}

TEST_P(Cast, ReducesInRankOrder) {
  for (int round = 0; round < 5; ++round)
    for (const std::size_t count : kCastCounts)
      for (const std::size_t ranks : {1, 2, 5}) {
        const Dtype wire = codec_.wire(kCastDtypes[random_() % 3]);
        CastRange got = random_range(count, wire);
        std::vector<std::vector<std::byte>> payloads;
        std::vector<const void*> views;
        for (std::size_t rank = 0; rank < ranks; ++rank)
          payloads.push_back(reference::as_bytes(values(count), wire, 0));
        for (const auto& payload : payloads) views.push_back(payload.data());
        CastRange want = got;
        const float factor = random_() % 2 ? 1.0f : 1.0f / 3;
        std::vector<float> p(count);
        for (std::size_t i = 0; i < count; ++i) {
          for (const void* payload : views)
            p[i] = std::fma(reference::load(payload, wire, i), factor, p[i]);
          if (got.has_residual)
            p[i] = reference::sum(p[i], reference::product(got.residual_factor,
                                                           reference::load(got.old_residual(),
                                                                           got.residual_dtype, i)));
        }
        const std::size_t overflows = want.write(p);
        EXPECT_EQ(codec_.loops().reduce({views,
                                         wire,
                                         count,
                                         factor,
                                         got.feedback(),
                                         {.values = got.wire_values(), .store = got.store},
                                         got.noise}),
                  overflows);
        ASSERT_NO_FATAL_FAILURE(expect_equal_casts(got, want, describe(got)));
      }
}

TEST_P(Cast, DecodesInOrderWithOneRounding) {
  for (const std::size_t count : kCastCounts)
    for (const Dtype dtype : kCastDtypes)
      for (const std::size_t ranks : {0, 1, 2, 5})
        for (const DecodeMode mode : {DecodeMode::kAssign, DecodeMode::kAdd}) {
          const Dtype wire = codec_.wire(dtype);
          const float factor = random_() % 2 ? 1.0f : 0.2f;
          const std::size_t offset = random_() % 40 * dtype_bytes(dtype);
          std::vector<std::vector<std::byte>> payloads;
          std::vector<const void*> views;
          for (std::size_t rank = 0; rank < ranks; ++rank)
            payloads.push_back(reference::as_bytes(values(count), wire, 0));
          for (const auto& payload : payloads) views.push_back(payload.data());
          auto got = reference::as_bytes(values(count), dtype, offset);
          auto want = got;
          for (std::size_t i = 0; i < count; ++i) {
            float sum = reference::load(want.data() + offset, dtype, i);
            if (ranks == 0 && mode == DecodeMode::kAssign) sum = 0;
            for (std::size_t rank = 0; rank < ranks; ++rank) {
              const float value = reference::load(views[rank], wire, i);
              sum = rank == 0 && mode == DecodeMode::kAssign ? reference::product(value, factor)
                                                             : std::fma(value, factor, sum);
            }
            if (wire == Dtype::kBf16)
              reference::store_decoded(sum, want.data() + offset, dtype, i);
            else
              reference::store(sum, want.data() + offset, dtype, i);
          }
          codec_.loops().decode({views,
                                 count,
                                 {got.data() + offset, dtype, factor, mode,
                                  random_() % 2 ? Store::kCached : Store::kStreaming}});
          for (std::size_t i = 0; i < got.size() / dtype_bytes(dtype); ++i) {
            const float a = reference::load(got.data(), dtype, i);
            const float b = reference::load(want.data(), dtype, i);
            ASSERT_TRUE((std::isnan(a) && std::isnan(b)) ||
                        std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b))
                << count << " " << dtype_name(dtype) << " ranks " << ranks << " value " << i << ": "
                << a << ", not " << b;
          }
        }
}

TEST(F16, CountsOverflowsFromRoundingMidpoint) {
  const float largest = std::nextafter(65520.0f, 0.0f);
  const float gradient[] = {65520.0f, -65520.0f, largest, -largest, 3e38f, INFINITY, std::nanf("")};
  for (const Isa isa : available_isas()) {
    const ForcedIsa forced(isa);
    F16 values[7];
    EXPECT_EQ(cast_loops<F16Format>().encode(
                  {.sent = {gradient, Dtype::kF32, 7}, .output = {.values = values}}),
              3u)
        << isa_name(isa);
    EXPECT_EQ(values[2].bits, 0x7bff) << isa_name(isa);
  }
}

std::string cast_name(const ::testing::TestParamInfo<std::tuple<CastCodec, Isa>>& info) {
  return std::string(std::get<0>(info.param).name) + "_" +
         std::string(isa_name(std::get<1>(info.param)));
}
INSTANTIATE_TEST_SUITE_P(Cpu, Cast,
                         ::testing::Combine(::testing::ValuesIn(kCastCodecs),
                                            ::testing::ValuesIn(available_isas())),
                         cast_name);

}  // namespace
}  // namespace tersor::kernels
