// Exact top-k on the CPU compared with a plain sort: set, order, bytes and residual. Covers every
// path, instruction set and number of threads. Long because each guarantee of the format has a
// separate test.
#include "kernels/topk/cpu.h"

#include "kernels/quantize/formulas.h"
#include "kernels/quantize/int8.h"
#include "kernels/quantize/kernels.h"

#include "tests/support/grid.h"

#include <gtest/gtest.h>
#include <tersor/align.h>
#include <tersor/isa.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace tersor::kernels {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
const float kNan = std::nanf("");

/// A payload with owned sections, and a guard after each section.
struct Payload {
  Payload(std::size_t count, std::size_t k, Dtype value_dtype_)
      : value_dtype(value_dtype_),
        first(ceil_div(count, kTopkTile) + 1 + kGuard, kGuardWord),
        index(k + kGuard, 0xa5a5),
        values(k * dtype_bytes(value_dtype) + kGuard, std::byte{0xa5}),
        scales(ceil_div(k, 256) + kGuard, -77.0f) {}

  TopkPayload sections() { return {first.data(), index.data(), values.data(), scales.data()}; }
  TopkPayloadView view() const {
    return {first.data(), index.data(), values.data(), scales.data()};
  }

  /// The value at index `i` as f32.
  float value(std::size_t i) const {
    if (value_dtype == Dtype::kF32) return reinterpret_cast<const float*>(values.data())[i];
    if (value_dtype == Dtype::kBf16) return to_f32(reinterpret_cast<const Bf16*>(values.data())[i]);
    return static_cast<float>(reinterpret_cast<const std::int8_t*>(values.data())[i]) *
           scales[i / 256];
  }

  friend bool operator==(const Payload& a, const Payload& b) {
    return a.first == b.first && a.index == b.index && a.values == b.values &&
           std::memcmp(a.scales.data(), b.scales.data(), a.scales.size() * sizeof(float)) == 0;
  }

  static constexpr std::size_t kGuard = 8;
  static constexpr std::uint32_t kGuardWord = 0xa5a5a5a5u;
  Dtype value_dtype;
  std::vector<std::uint32_t> first;
  std::vector<std::uint16_t> index;
  std::vector<std::byte> values;
  std::vector<float> scales;
};

/// `count` values of a dtype at any element-aligned address.
struct Values {
  Values(Dtype dtype_, std::span<const float> from, std::size_t shift = 0)
      : dtype(dtype_),
        count(from.size()),
        offset(shift * dtype_bytes(dtype_)),
        bytes(offset + (count + 1) * dtype_bytes(dtype_), std::byte{0x5a}) {
    for (std::size_t i = 0; i < count; ++i) set(i, from[i]);
  }

  void* pointer() { return bytes.data() + offset; }
  const void* pointer() const { return bytes.data() + offset; }

  void set(std::size_t i, float value) {
    visit_gradient_dtype(
        dtype, [&]<typename T>(T) { static_cast<T*>(pointer())[i] = from_f32<T>(value); });
  }
  float get(std::size_t i) const {
    return visit_gradient_dtype(
        dtype, [&]<typename T>(T) { return to_f32(static_cast<const T*>(pointer())[i]); });
  }

  Dtype dtype;
  std::size_t count;
  std::size_t offset;
  std::vector<std::byte> bytes;
};

/// The input and options of an encode.
struct Case {
  std::vector<float> gradient;
  std::vector<float> residual;  // empty: none
  std::size_t k = 1;
  Dtype dtype = Dtype::kF32;
  Dtype residual_dtype = Dtype::kF32;
  Dtype value_dtype = Dtype::kF32;
  float a = 1;
  float b = 1;
  std::size_t shift = 0;
  enum class Placement { kIn, kOut } placement = Placement::kIn;
};

/// The results of an encode.
struct Outcome {
  TopkResult result;
  Payload payload;
  std::vector<float> residual;
};

Outcome encode(const Case& test, unsigned thread_count, TopkForce force = TopkForce::kNothing) {
  Threads threads(thread_count);
  const std::size_t count = test.gradient.size();
  const Values gradient(test.dtype, test.gradient, test.shift);
  Values residual(test.residual_dtype, test.residual, test.shift);
  Values other(test.residual_dtype, std::vector<float>(test.residual.size(), -55.0f), 1);
  Values& out = test.placement == Case::Placement::kIn ? residual : other;
  Outcome outcome{{}, Payload(count, test.k, test.value_dtype), {}};
  std::vector<std::byte> workspace(topk_workspace_bytes(count, test.k, thread_count) + 8,
                                   std::byte{0xcc});
  ErrorFeedback feedback{.residual_in = test.residual.empty() ? nullptr : residual.pointer(),
                         .residual_out = test.residual.empty() ? nullptr : out.pointer(),
                         .dtype = test.residual_dtype,
                         .gradient_factor = test.a,
                         .residual_factor = test.b};
  const std::span<std::byte> borrowed(workspace.data() + 1, workspace.size() - 8);
  outcome.result = topk_encode({.gradient = gradient.pointer(),
                                .dtype = test.dtype,
                                .count = count,
                                .feedback = feedback,
                                .k = test.k,
                                .value_dtype = test.value_dtype,
                                .payload = outcome.payload.sections(),
                                .workspace = borrowed,
                                .force = force},
                               threads);
  for (std::size_t i = workspace.size() - 7; i < workspace.size(); ++i)
    EXPECT_EQ(workspace[i], std::byte{0xcc}) << "behind the workspace";
  EXPECT_EQ(out.bytes.back(), std::byte{0x5a}) << "behind the residual";
  for (std::size_t i = 0; i < test.residual.size(); ++i) outcome.residual.push_back(out.get(i));
  return outcome;
}

// The reference: sorts all of p.

std::vector<float> sum_of(const Case& test) {
  std::vector<float> p;
  const Values gradient(test.dtype, test.gradient);
  const Values residual(test.residual_dtype, test.residual);
  for (std::size_t i = 0; i < test.gradient.size(); ++i) {
    const float sent = test.a * gradient.get(i);
    if (test.residual.empty()) {
      p.push_back(gradient.get(i));
    } else {
      const float selected = test.b * residual.get(i);
      p.push_back(sent + selected);
    }
  }
  return p;
}

std::uint32_t key_of(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits & 0x7fffffffu;
}

std::vector<std::size_t> chosen_of(const std::vector<float>& p, std::size_t k) {
  std::vector<std::size_t> order(p.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::erase_if(order, [&](std::size_t i) { return p[i] == 0; });
  std::sort(order.begin(), order.end(), [&](std::size_t i, std::size_t j) {
    return key_of(p[i]) != key_of(p[j]) ? key_of(p[i]) > key_of(p[j]) : i < j;
  });
  order.resize(std::min(order.size(), k));
  std::sort(order.begin(), order.end());
  return order;
}

void write_values(const std::vector<float>& values, Payload& payload) {
  const std::size_t k = values.size();
  for (std::size_t i = 0; i < k; ++i) {
    if (payload.value_dtype == Dtype::kF32)
      reinterpret_cast<float*>(payload.values.data())[i] = values[i];
    if (payload.value_dtype == Dtype::kBf16)
      reinterpret_cast<Bf16*>(payload.values.data())[i] = from_f32<Bf16>(values[i]);
  }
  if (payload.value_dtype == Dtype::kI8)
    quantize_loops<Int8Format>().encode(
        {.sent = {values.data(), Dtype::kF32, k},
         .output = {.scales = payload.scales.data(), .codes = payload.values.data()}});
}

Outcome reference(const Case& test) {
  const std::vector<float> p = sum_of(test);
  const std::vector<std::size_t> chosen = chosen_of(p, test.k);
  Outcome outcome{{}, Payload(p.size(), test.k, test.value_dtype), {}};
  Payload& payload = outcome.payload;
  outcome.result.selected = chosen.size();
  const std::size_t tiles = ceil_div(p.size(), kTopkTile);
  for (std::size_t tile = 0; tile <= tiles; ++tile)
    payload.first[tile] = static_cast<std::uint32_t>(
        std::lower_bound(chosen.begin(), chosen.end(), tile * kTopkTile) - chosen.begin());
  std::vector<float> values(test.k, 0.0f);
  for (std::size_t i = 0; i < test.k; ++i) {
    payload.index[i] = static_cast<std::uint16_t>(i < chosen.size() ? chosen[i] % kTopkTile : 0);
    if (i < chosen.size()) values[i] = p[chosen[i]];
  }
  write_values(values, payload);
  if (test.residual.empty()) return outcome;
  std::vector<float> rest = p;
  for (std::size_t i = 0; i < chosen.size(); ++i) rest[chosen[i]] = p[chosen[i]] - payload.value(i);
  const Values rounded(test.residual_dtype, rest);
  for (std::size_t i = 0; i < rest.size(); ++i) outcome.residual.push_back(rounded.get(i));
  return outcome;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return false;
  return a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

constexpr TopkForce kForces[] = {TopkForce::kNothing, TopkForce::kTooFew, TopkForce::kTooMany,
                                 TopkForce::kRadix};

std::string name_of(TopkForce force) {
  constexpr const char* kNames[] = {"nothing", "too few", "too many", "radix"};
  return kNames[static_cast<std::size_t>(force)];
}

/// Restores the best instruction set.
struct AnyIsa : ::testing::Test {
  ~AnyIsa() override { force_isa(std::nullopt); }
};

/// Compares with the reference, with one instruction set.
void expect_exact(const Case& test, const Outcome& expected, unsigned threads, TopkForce force) {
  SCOPED_TRACE("count " + std::to_string(test.gradient.size()) + ", k " + std::to_string(test.k) +
               ", threads " + std::to_string(threads) + ", force " + name_of(force) + ", isa " +
               std::string(isa_name(current_isa())));
  const Outcome found = encode(test, threads, force);
  ASSERT_EQ(found.result.selected, expected.result.selected);
  ASSERT_EQ(found.result.non_finite, 0u);
  ASSERT_TRUE(found.payload == expected.payload);
  ASSERT_TRUE(same_bits(found.residual, expected.residual));
  ASSERT_EQ(topk_validate(found.payload.view(), test.gradient.size(), test.k), nullptr);
}

/// Compares with all instruction sets, on all paths, with one to three threads.
void expect_exact_everywhere(const Case& test) {
  const Outcome expected = reference(test);
  for (const Isa isa : available_isas()) {
    force_isa(isa);
    for (const TopkForce force : kForces)
      for (const unsigned threads : {1u, 2u, 3u}) {
        if (threads == 2 && test::grid_is_small()) continue;
        expect_exact(test, expected, threads, force);
        if (::testing::Test::HasFatalFailure()) return;
      }
  }
}

using Draw = std::function<float(std::size_t)>;

std::vector<float> draw(std::size_t count, const Draw& value_at) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = value_at(i);
  return values;
}

std::vector<float> gaussian(std::size_t count, unsigned seed, float deviation = 1) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0, deviation);
  return draw(count, [&](std::size_t) { return normal(engine); });
}

std::size_t k_of(std::size_t count, double density) {
  const double k = std::ceil(density * static_cast<double>(count));
  return std::min(count, std::max<std::size_t>(1, static_cast<std::size_t>(k)));
}

TEST(Topk, EmptyInput) {
  for (const unsigned threads : {1u, 3u}) {
    const Outcome outcome = encode({.gradient = {}, .residual = {}, .k = 0}, threads);
    EXPECT_EQ(outcome.result.selected, 0u);
    EXPECT_EQ(outcome.payload.first[0], 0u);
    EXPECT_EQ(topk_validate(outcome.payload.view(), 0, 0), nullptr);
  }
}

using TopkExact = AnyIsa;

TEST_F(TopkExact, CountsAndDensities) {
  for (const std::size_t count : {1u, 2u, 15u, 255u, 256u, 257u, 2048u, 65535u, 65536u, 65537u})
    for (const double density : {1e-6, 1e-3, 0.01, 0.1, 0.5, 1.0}) {
      expect_exact_everywhere({.gradient = gaussian(count, 1),
                               .residual = gaussian(count, 2),
                               .k = k_of(count, density)});
      if (HasFatalFailure()) return;
    }
}

TEST_F(TopkExact, LargeCounts) {
  for (const std::size_t count : {131073u, 1000003u})
    for (const double density : {1e-6, 1e-3, 0.01, 0.3, 1.0}) {
      if (test::grid_is_small() && count == 1000003 && density != 0.01) continue;
      expect_exact_everywhere({.gradient = gaussian(count, 3),
                               .residual = gaussian(count, 4),
                               .k = k_of(count, density)});
      if (HasFatalFailure()) return;
    }
}

TEST_F(TopkExact, EveryTypeOfGradientResidualAndValue) {
  constexpr std::size_t kCount = 70001;
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16, Dtype::kF16})
    for (const Dtype residual : {Dtype::kF32, Dtype::kBf16})
      for (const Dtype value : {Dtype::kF32, Dtype::kBf16, Dtype::kI8})
        for (const auto placement : {Case::Placement::kIn, Case::Placement::kOut}) {
          SCOPED_TRACE(std::string(dtype_name(dtype)) + " gradient, " +
                       std::string(dtype_name(residual)) + " residual, " +
                       std::string(dtype_name(value)) + " values, " +
                       (placement == Case::Placement::kIn ? "in place" : "out of place"));
          expect_exact_everywhere({.gradient = gaussian(kCount, 5),
                                   .residual = gaussian(kCount, 6),
                                   .k = 701,
                                   .dtype = dtype,
                                   .residual_dtype = residual,
                                   .value_dtype = value,
                                   .a = 0.7f,
                                   .b = 1.3f,
                                   .shift = 3,
                                   .placement = placement});
          if (HasFatalFailure()) return;
        }
}

TEST_F(TopkExact, WithoutResidual) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16, Dtype::kF16})
    for (const Dtype value : {Dtype::kF32, Dtype::kBf16, Dtype::kI8})
      for (const std::size_t count : {257u, 200003u}) {
        expect_exact_everywhere({.gradient = gaussian(count, 7),
                                 .residual = {},
                                 .k = k_of(count, 0.01),
                                 .dtype = dtype,
                                 .value_dtype = value,
                                 .shift = 1});
        if (HasFatalFailure()) return;
      }
}

TEST_F(TopkExact, ZeroResidualFactorDropsResidual) {
  expect_exact_everywhere(
      {.gradient = gaussian(70001, 8), .residual = gaussian(70001, 9), .k = 700, .b = 0});
}

TEST_F(TopkExact, HostileInputs) {
  constexpr std::size_t kCount = 300007;
  std::mt19937 engine(10);
  const auto uniform = [&] { return static_cast<float>(engine() % 1000) / 1000.0f; };
  const std::pair<const char*, Draw> inputs[] = {
      {"all zero", [](std::size_t) { return 0.0f; }},
      {"all equal", [](std::size_t i) { return i % 2 == 0 ? 1.5f : -1.5f; }},
      {"ascending", [](std::size_t i) { return static_cast<float>(i); }},
      {"descending", [](std::size_t i) { return static_cast<float>(kCount - i); }},
      {"a spike a tile", [](std::size_t i) { return i % kTopkTile == 77 ? 9.0f : 0.0f; }},
      {"a dense corner", [&](std::size_t i) { return i < 6000 ? 100 + uniform() : uniform(); }},
      {"a dense end", [&](std::size_t i) { return i > 290000 ? 1 + uniform() : 0.0f; }},
      {"few levels", [&](std::size_t) { return static_cast<float>(engine() % 5) - 2.0f; }},
      {"denormals", [&](std::size_t) { return static_cast<float>(engine() % 900) * 1e-45f; }},
      {"all exponents",
       [&](std::size_t) {
         const std::uint32_t bits = static_cast<std::uint32_t>(engine());
         return (bits >> 23 & 0xff) > 0xfc ? 1.0f : float_of(bits);
       }},
      {"a large line in 64",
       [&](std::size_t i) { return i / 16 % 64 == 5 ? 50 + uniform() : uniform(); }},
  };
  for (const auto& [name, value_at] : inputs) {
    SCOPED_TRACE(name);
    const std::vector<float> gradient = draw(kCount, value_at);
    for (const std::size_t k : {1u, 5u, 3000u, 200000u}) {
      if (test::grid_is_small() && k != 5 && k != 3000) continue;
      expect_exact_everywhere(
          {.gradient = gradient, .residual = std::vector<float>(kCount), .k = k});
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(TopkExact, ForcesSelectExpectedPaths) {
  const Case test{.gradient = gaussian(1000003, 11), .residual = gaussian(1000003, 12), .k = 10001};
  const std::pair<TopkForce, TopkPath> expected[] = {{TopkForce::kNothing, TopkPath::kHit},
                                                     {TopkForce::kTooFew, TopkPath::kGather},
                                                     {TopkForce::kTooMany, TopkPath::kGather},
                                                     {TopkForce::kRadix, TopkPath::kRadix}};
  for (const auto& [force, path] : expected)
    for (const unsigned threads : {1u, 2u})
      EXPECT_EQ(encode(test, threads, force).result.path, path) << name_of(force);
}

TEST_F(TopkExact, TenStepsWithFeedbackMatchReference) {
  constexpr std::size_t kCount = 100003;
  std::vector<float> residual(kCount, 0.0f);
  for (unsigned step = 0; step < 10; ++step) {
    const Case test{.gradient = gaussian(kCount, 20 + step), .residual = residual, .k = 1001};
    const Outcome expected = reference(test);
    expect_exact(test, expected, 2, TopkForce::kNothing);
    residual = expected.residual;
  }
}

// Values that are not finite.

struct Poisons {
  const char* name;
  std::vector<std::pair<std::size_t, float>> gradient;
  std::vector<std::pair<std::size_t, float>> residual;
};

/// Expects the old residual: exactly for non-finite p, otherwise within one rounding.
void expect_old_residual(const Case& test, const Outcome& found, bool exact) {
  const std::vector<float> p = sum_of(test);
  const Values old(test.residual_dtype, test.residual);
  const Values gradient(test.dtype, test.gradient);
  for (std::size_t i = 0; i < p.size(); ++i) {
    const bool finite = std::isfinite(p[i]);
    const float sent = test.a * gradient.get(i);
    const float expected = exact || !finite ? old.get(i) : (p[i] - sent) / test.b;
    ASSERT_EQ(key_of(found.residual[i]), key_of(expected)) << "at " << i << ", p " << p[i];
    if (finite)
      ASSERT_NEAR(found.residual[i], old.get(i), 1e-6f * (std::abs(p[i]) + std::abs(sent)) / test.b)
          << "at " << i;
  }
}

void expect_poison(const Case& test, const Outcome& found, bool exact) {
  const std::size_t count = test.gradient.size();
  ASSERT_EQ(found.result.path, TopkPath::kPoison);
  ASSERT_EQ(found.result.selected, test.k);
  const std::vector<float> p = sum_of(test);
  ASSERT_EQ(found.result.non_finite, static_cast<std::size_t>(std::ranges::count_if(
                                         p, [](float x) { return !std::isfinite(x); })));
  ASSERT_EQ(topk_validate(found.payload.view(), count, test.k), nullptr);
  for (std::size_t i = 0; i < test.k; ++i) {
    ASSERT_TRUE(std::isnan(found.payload.value(i)));
    ASSERT_EQ(found.payload.index[i], i % kTopkTile);
  }
  if (!test.residual.empty()) expect_old_residual(test, found, exact);
}

using TopkPoison = AnyIsa;

TEST_F(TopkPoison, SendsNansAndKeepsTheOldResidual) {
  constexpr std::size_t kCount = 140001;
  const Poisons poisons[] = {{"a NaN", {{5, kNan}}, {}},
                             {"infinities", {{70000, kInfinity}, {140000, -kInfinity}}, {}},
                             {"in the residual", {}, {{65535, kNan}, {65536, kInfinity}}},
                             {"an overflow", {{3, 3e38f}}, {{3, 3e38f}}}};
  for (const Poisons& poison : poisons)
    for (const Dtype value : {Dtype::kF32, Dtype::kBf16, Dtype::kI8})
      for (const Dtype residual : {Dtype::kF32, Dtype::kBf16})
        for (const auto placement : {Case::Placement::kIn, Case::Placement::kOut})
          for (const std::size_t k : {1u, 1401u, 140001u}) {
            if (test::grid_is_small() && k != 1401 && value != Dtype::kF32) continue;
            SCOPED_TRACE(std::string(poison.name) + ", " + std::string(dtype_name(value)) + ", " +
                         std::string(dtype_name(residual)) + ", k " + std::to_string(k));
            Case test{.gradient = gaussian(kCount, 13),
                      .residual = gaussian(kCount, 14),
                      .k = k,
                      .residual_dtype = residual,
                      .value_dtype = value,
                      .a = 1.0f,
                      .b = 0.9f,
                      .placement = placement};
            for (const auto& [i, bad] : poison.gradient) test.gradient[i] = bad;
            for (const auto& [i, bad] : poison.residual) test.residual[i] = bad;
            if (std::string(poison.name) == "an overflow") test.b = 1;
            const bool exact = residual == Dtype::kBf16 || placement == Case::Placement::kOut;
            for (const Isa isa : available_isas()) {
              force_isa(isa);
              for (const unsigned threads : {1u, 2u})
                expect_poison(test, encode(test, threads), exact);
              if (HasFatalFailure()) return;
            }
          }
}

TEST_F(TopkPoison, ManyNonFiniteValues) {
  constexpr std::size_t kCount = 600011;
  Case test{.gradient = gaussian(kCount, 15), .residual = gaussian(kCount, 16), .k = 601};
  for (std::size_t i = 0; i < kCount; ++i)
    if (i % 3 == 0 || i / 50000 == 4) test.gradient[i] = kInfinity;
  for (std::size_t i = 0; i < kCount; i += 7) test.gradient[i] = test.residual[i] = 3e38f;
  for (const Isa isa : available_isas()) {
    force_isa(isa);
    for (const unsigned threads : {1u, 2u, 3u})
      for (const TopkForce force : kForces) {
        expect_poison(test, encode(test, threads, force), false);
        if (HasFatalFailure()) return;
      }
  }
}

TEST_F(TopkPoison, WithoutResidual) {
  Case test{.gradient = gaussian(70001, 17), .residual = {}, .k = 66000, .dtype = Dtype::kBf16};
  test.gradient[70000] = kNan;
  expect_poison(test, encode(test, 2), true);
}

TEST_F(TopkPoison, Bf16OverflowCountsAsNonFinite) {
  for (const bool values : {false, true}) {
    Case test{.gradient = gaussian(5000, 18), .residual = gaussian(5000, 19), .k = 50};
    test.gradient[77] = 3.4e38f;
    EXPECT_EQ(encode(test, 1).result.path, TopkPath::kHit);
    (values ? test.value_dtype : test.residual_dtype) = Dtype::kBf16;
    const Outcome outcome = encode(test, 1);
    EXPECT_EQ(outcome.result.path, TopkPath::kPoison);
    EXPECT_EQ(outcome.result.non_finite, 1u);
  }
}

// Sizes and errors.

// The workspace for large counts is 1/16 of the gradient plus the payload. Each thread beyond two
// adds memory pages.
TEST(TopkWorkspace, IsSmallComparedWithGradient) {
  constexpr std::size_t kBytesAThread = std::size_t{1} << 19;
  for (const std::size_t count : {std::size_t{1} << 24, std::size_t{1} << 26, std::size_t{1} << 33})
    for (const double density : {1e-6, 1e-3, 0.01})
      for (const unsigned threads : {1u, 2u, 16u}) {
        const std::size_t k = k_of(count, density);
        const bool strict = count >= std::size_t{1} << 26 && threads <= 2;
        const std::size_t space = strict ? 0 : threads * kBytesAThread;
        EXPECT_LE(topk_workspace_bytes(count, k, threads), count * 4 / 16 + 6 * k + space)
            << count << " values, k " << k << ", threads " << threads;
      }
}

TEST(TopkErrors, RejectsInvalidTasks) {
  Threads threads(1);
  const std::vector<float> gradient(100, 1.0f);
  Payload payload(100, 10, Dtype::kF32);
  std::vector<std::byte> workspace(topk_workspace_bytes(100, 10, 1));
  TopkEncode task{.gradient = gradient.data(),
                  .dtype = Dtype::kF32,
                  .count = 100,
                  .feedback = {},
                  .k = 10,
                  .value_dtype = Dtype::kF32,
                  .payload = payload.sections(),
                  .workspace = workspace};
  const auto expect_refused = [&](const TopkEncode& wrong) {
    EXPECT_THROW(topk_encode(wrong, threads), InvalidArgumentError);
  };
  TopkEncode wrong = task;
  wrong.k = 0;
  expect_refused(wrong);
  wrong.k = 101;
  expect_refused(wrong);
  wrong = task;
  wrong.dtype = Dtype::kI8;
  expect_refused(wrong);
  wrong = task;
  wrong.value_dtype = Dtype::kF16;
  expect_refused(wrong);
  wrong = task;
  wrong.workspace = std::span(workspace).first(workspace.size() - 64);
  expect_refused(wrong);
  EXPECT_EQ(topk_encode(task, threads).selected, 10u);
}

}  // namespace
}  // namespace tersor::kernels
