// Sums, maxima and products in place, with every instruction set.

#include "kernels/host/elementwise.h"
#include "tests/kernels/reference.h"

#include <tersor/error.h>

#include <gtest/gtest.h>

#include <numeric>

namespace tersor::kernels {
namespace {

using reference::ForcedIsa;

constexpr std::size_t kElementCounts[] = {0, 1, 3, 15, 16, 17, 255, 256, 257, 1021};

class Elementwise : public ::testing::TestWithParam<Isa> {
 protected:
  const ForcedIsa isa_{GetParam()};
  std::mt19937_64 random_{7};

  std::vector<float> values(std::size_t count) {
    auto values = reference::values_of_all_kinds(count, random_);
    reference::spoil(values, 40, random_);
    return values;
  }

  /// Applies operation(left, right) in place and compares with `expected` for each pair. NaNs
  /// compare equal.
  template <class Operation, class Expected>
  void expect_each(Operation operation, Expected expected) {
    for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16, Dtype::kF16})
      for (const std::size_t count : kElementCounts)
        for (const std::size_t offset : {0, 1, 5}) {
          const std::size_t bytes = offset * dtype_bytes(dtype);
          auto got = reference::as_bytes(values(count), dtype, bytes);
          const auto right = reference::as_bytes(values(count), dtype, bytes);
          auto want = got;
          for (std::size_t i = 0; i < count; ++i)
            reference::store(expected(reference::load(got.data() + bytes, dtype, i),
                                      reference::load(right.data() + bytes, dtype, i)),
                             want.data() + bytes, dtype, i);
          operation(got.data() + bytes, right.data() + bytes, dtype, count);
          expect_same(got, want, dtype, count);
        }
  }

  void expect_same(const std::vector<std::byte>& got, const std::vector<std::byte>& want,
                   Dtype dtype, std::size_t count) {
    for (std::size_t i = 0; i < got.size() / dtype_bytes(dtype); ++i) {
      const float a = reference::load(got.data(), dtype, i);
      const float b = reference::load(want.data(), dtype, i);
      ASSERT_TRUE((std::isnan(a) && std::isnan(b)) ||
                  std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b))
          << dtype_name(dtype) << " count " << count << " value " << i << ": " << a << ", not "
          << b;
    }
  }
};

TEST_P(Elementwise, AddsWithOneRounding) { expect_each(add_values, reference::sum); }

TEST_P(Elementwise, ScalesWithOneRounding) {
  for (const float factor : {0.25f, 1.0f / 3, -7.0f})
    expect_each([&](void* values, const void*, Dtype dtype,
                    std::size_t count) { scale_values(values, dtype, count, factor); },
                [&](float value, float) { return reference::product(value, factor); });
}

TEST_P(Elementwise, MaximumPropagatesNansAndPrefersPlusZero) {
  const auto larger = [](float a, float b) {
    if (std::isnan(a) || std::isnan(b)) return std::nanf("");
    if (a == 0 && b == 0) return std::signbit(a) && std::signbit(b) ? -0.0f : 0.0f;
    return std::max(a, b);
  };
  expect_each(maximum_values, larger);
}

// The order is the same with every instruction set.
TEST_P(Elementwise, AddsSquaresInDouble) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16, Dtype::kF16})
    for (const std::size_t count : kElementCounts) {
      const auto bytes = reference::as_bytes(reference::values_of_all_kinds(count, random_), dtype,
                                             dtype_bytes(dtype));
      const std::byte* values = bytes.data() + dtype_bytes(dtype);
      double sums[16] = {};
      for (std::size_t i = 0; i < count; ++i) {
        const double value = reference::load(values, dtype, i);
        sums[i % 16] += value * value;
      }
      const double sum = std::accumulate(sums, sums + 16, 0.0);
      const double got = sum_of_squares(values, dtype, count);
      EXPECT_TRUE(got == sum || (std::isnan(got) && std::isnan(sum)))
          << dtype_name(dtype) << " count " << count << ": " << got << ", not " << sum;
    }
}

template <typename T>
void expect_integers(Dtype dtype, std::mt19937_64& random) {
  for (const std::size_t count : kElementCounts) {
    std::vector<T> left(count), right(count), sums(count), maxima(count);
    for (std::size_t i = 0; i < count; ++i) {
      left[i] = static_cast<T>(random());
      right[i] = static_cast<T>(random());
      sums[i] = static_cast<T>(static_cast<std::uint64_t>(left[i]) +
                               static_cast<std::uint64_t>(right[i]));
      maxima[i] = std::max(left[i], right[i]);
    }
    auto sum = left;
    add_values(sum.data(), right.data(), dtype, count);
    EXPECT_EQ(sum, sums);
    maximum_values(left.data(), right.data(), dtype, count);
    EXPECT_EQ(left, maxima);
  }
}

TEST_P(Elementwise, IntegersWrapAround) {
  expect_integers<std::int8_t>(Dtype::kI8, random_);
  expect_integers<std::int32_t>(Dtype::kI32, random_);
  expect_integers<std::uint32_t>(Dtype::kU32, random_);
}

TEST_P(Elementwise, RejectsScalingOfIntegers) {
  std::int32_t value = 1;
  EXPECT_THROW(scale_values(&value, Dtype::kI32, 1, 2), InvalidArgumentError);
}

INSTANTIATE_TEST_SUITE_P(Cpu, Elementwise, ::testing::ValuesIn(available_isas()),
                         [](const auto& info) { return std::string(isa_name(info.param)); });

}  // namespace
}  // namespace tersor::kernels
