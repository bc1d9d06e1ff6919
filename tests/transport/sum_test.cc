// Native sums and maxima: exact for known results, in the documented order if the order matters,
// for all types and all splits into parts.
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include "tests/support/grid.h"
#include "tests/transport/late_wire.h"
#include "tests/transport/ranks.h"

namespace tersor::test {
namespace {

class TransportSum : public OnFabric {};

INSTANTIATE_TEST_SUITE_P(Fabrics, TransportSum, ::testing::ValuesIn(fabrics()), fabric_name);
INSTANTIATE_TEST_SUITE_P(Late, TransportSum, ::testing::Values(in_place_fabric()), fabric_name);

// Conversions independent of the library.
float narrowed(float value, Bf16) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t lower = bits & 0xffff, half = 0x8000;
  std::uint32_t upper = bits >> 16;
  if (lower > half || (lower == half && upper % 2 == 1)) ++upper;
  return std::bit_cast<float>(upper << 16);
}
float narrowed(float value, F16) { return static_cast<float>(static_cast<_Float16>(value)); }
float narrowed(float value, float) { return value; }

Bf16 encoded(float value, Bf16) {
  return {static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(narrowed(value, Bf16{})) >> 16)};
}
F16 encoded(float value, F16) {
  return {std::bit_cast<std::uint16_t>(static_cast<_Float16>(value))};
}
template <typename T>
T encoded(float value, T) {
  return static_cast<T>(value);
}

float decoded(Bf16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}
float decoded(F16 value) { return static_cast<float>(std::bit_cast<_Float16>(value.bits)); }
template <typename T>
float decoded(T value) {
  return static_cast<float>(value);
}

/// Small integers: every type holds the values and their sums over 8 ranks exactly.
template <typename T>
std::vector<T> whole_numbers(std::size_t count, int rank) {
  std::vector<T> values(count);
  for (std::size_t i = 0; i < count; ++i)
    values[i] = encoded(static_cast<float>((i + static_cast<std::size_t>(rank) * 5) % 13), T{});
  return values;
}

float whole_sum(std::size_t i, int ranks) {
  float sum = 0;
  for (int rank = 0; rank < ranks; ++rank)
    sum += static_cast<float>((i + static_cast<std::size_t>(rank) * 5) % 13);
  return sum;
}

float whole_maximum(std::size_t i, int ranks) {
  float largest = 0;
  for (int rank = 0; rank < ranks; ++rank)
    largest = std::max(largest, static_cast<float>((i + static_cast<std::size_t>(rank) * 5) % 13));
  return largest;
}

template <typename T>
void check_whole_numbers(Transport& transport, std::size_t count) {
  const auto counts = even_counts(count, transport.ranks());
  auto sums = whole_numbers<T>(count, transport.rank());
  auto maxima = sums;
  transport.sum(operation_of(transport), cut(sums, counts)).wait_synchronize();
  transport.maximum(operation_of(transport), cut(maxima, counts)).wait_synchronize();
  for (std::size_t i = 0; i < count; ++i) {
    ASSERT_EQ(decoded(sums[i]), whole_sum(i, transport.ranks())) << i << " of " << count;
    ASSERT_EQ(decoded(maxima[i]), whole_maximum(i, transport.ranks())) << i << " of " << count;
  }
}

TEST_P(TransportSum, IsExactForIntegersOfEveryType) {
  on_all_ranks([](Transport& transport) {
    for (const std::size_t count : {0u, 1u, 255u, 257u, 2'048u, 2'049u, 65'537u, 1u << 20}) {
      SCOPED_TRACE(::testing::Message() << count << " values");
      check_whole_numbers<float>(transport, count);
      if (count > 100'000) continue;
      check_whole_numbers<Bf16>(transport, count);
      check_whole_numbers<F16>(transport, count);
      check_whole_numbers<std::int8_t>(transport, count);
      check_whole_numbers<std::int32_t>(transport, count);
      check_whole_numbers<std::uint32_t>(transport, count);
    }
  });
}

/// Values of very different magnitudes. Nearly every order of additions gives another sum.
std::vector<float> rough_values(std::size_t count, int rank) {
  std::mt19937 random(static_cast<unsigned>(rank) + 77);
  std::uniform_real_distribution<float> mantissa(-1, 1);
  std::uniform_int_distribution<int> exponent(-8, 8);
  std::vector<float> values(count);
  for (float& value : values) value = std::ldexp(mantissa(random), exponent(random));
  return values;
}

template <typename T>
float sum_in_order(const std::vector<std::vector<float>>& contributions, std::size_t i, int owner) {
  const int ranks = static_cast<int>(contributions.size());
  const auto value = [&](int distance) {
    return narrowed(contributions[static_cast<std::size_t>((owner + distance) % ranks)][i], T{});
  };
  float sum = value(1);
  for (int distance = 2; distance <= ranks; ++distance) sum = narrowed(sum + value(distance), T{});
  return sum;
}

/// The inputs of all ranks, and the sum on this rank.
template <typename T>
struct RoughSum {
  std::vector<std::vector<float>> contributions;
  std::vector<T> values;

  RoughSum(Transport& transport, const std::vector<std::size_t>& counts, std::size_t whole_bytes) {
    const std::size_t count = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
    for (int rank = 0; rank < transport.ranks(); ++rank)
      contributions.push_back(rough_values(count, rank));
    for (const float value : contributions[static_cast<std::size_t>(transport.rank())])
      values.push_back(encoded(value, T{}));
    Operation operation = operation_of(transport);
    operation.whole_bytes = whole_bytes;
    transport.sum(operation, cut(values, counts)).wait_synchronize();
  }
};

template <typename T>
void check_order(Transport& transport, const std::vector<std::size_t>& counts,
                 std::size_t whole_bytes = 0) {
  const RoughSum<T> sum(transport, counts, whole_bytes);
  std::size_t i = 0;
  for (int owner = 0; owner < transport.ranks(); ++owner)
    for (std::size_t end = i + counts[static_cast<std::size_t>(owner)]; i < end; ++i)
      ASSERT_EQ(decoded(sum.values[i]), sum_in_order<T>(sum.contributions, i, owner))
          << "value " << i << " of owner " << owner;
}

TEST_P(TransportSum, AddsEachPartInTheOrderFromItsOwner) {
  on_all_ranks([](Transport& transport) {
    for (const std::size_t count : {300u, 40'000u, 300'000u}) {
      const auto counts = even_counts(count, transport.ranks());
      check_order<float>(transport, counts);
      if (count > 100'000 && grid_is_small()) continue;
      check_order<Bf16>(transport, counts);
      check_order<F16>(transport, counts);
    }
  });
}

// Parts of any count in any memory: empty on the last ranks, and one far longer than the others.
TEST_P(TransportSum, PartsMayBeUnequalOrEmpty) {
  on_all_ranks([](Transport& transport) {
    std::vector<std::size_t> counts(static_cast<std::size_t>(transport.ranks()), 3);
    counts.back() = 0;
    counts.front() = 200'001;
    check_order<float>(transport, counts);
    check_order<Bf16>(transport, counts);
    counts.front() = 0;
    check_order<float>(transport, counts);
  });
}

/// Pairwise addition, for a power of two of ranks.
template <typename T>
float sum_by_halves(const std::vector<std::vector<float>>& contributions, std::size_t i, int first,
                    int ranks) {
  if (ranks == 1) return narrowed(contributions[static_cast<std::size_t>(first)][i], T{});
  return narrowed(sum_by_halves<T>(contributions, i, first, ranks / 2) +
                      sum_by_halves<T>(contributions, i, first + ranks / 2, ranks / 2),
                  T{});
}

template <typename T>
void check_halves(Transport& transport, const std::vector<std::size_t>& counts,
                  std::size_t whole_bytes) {
  const RoughSum<T> sum(transport, counts, whole_bytes);
  for (std::size_t i = 0; i < sum.values.size(); ++i)
    ASSERT_EQ(decoded(sum.values[i]), sum_by_halves<T>(sum.contributions, i, 0, transport.ranks()))
        << "value " << i << " of " << sum.values.size();
}

// Without a required order, small counts are added pairwise for all splits into parts.
TEST_P(TransportSum, SmallSumsAddPairwiseWithoutRequiredOrder) {
  for (const int ranks : {2, 4, 8})
    run(ranks, [](Transport& transport) {
      for (const std::size_t count : {1u, 7u, 2'048u, 2'049u, 8'192u, 16'384u}) {
        const auto even = even_counts(count, transport.ranks());
        std::vector<std::size_t> uneven(even.size(), 0);
        uneven[even.size() / 2] = count;
        for (const auto& counts : {even, uneven}) {
          check_halves<float>(transport, counts, count * 4);
          check_halves<float>(transport, counts, 64 * 1024);  // as a piece of a longer sum
          check_halves<Bf16>(transport, counts, count * 2);
          check_halves<F16>(transport, counts, count * 2);
        }
      }
    });
}

TEST_P(TransportSum, PiecesOfLongSumsKeepOwnerOrder) {
  on_all_ranks([](Transport& transport) {
    const auto counts = even_counts(300, transport.ranks());
    check_order<float>(transport, counts, 64 * 1024 + 4);
    if (transport.ranks() == 3) check_order<float>(transport, counts, 1200);
  });
}

// Parts may be anywhere in memory. Non-contiguous parts are gathered before the sum.
TEST_P(TransportSum, PartsMayBeNoncontiguous) {
  run(4, [](Transport& transport) {
    std::vector<std::vector<float>> memory(4, std::vector<float>(100));
    std::vector<ValueSpan> parts;
    for (std::size_t part = 4; part-- > 0;) {
      std::iota(memory[part].begin(), memory[part].end(), static_cast<float>(part));
      parts.emplace_back(memory[part]);
    }
    Operation operation = operation_of(transport);
    operation.whole_bytes = 1600;
    transport.sum(operation, parts).wait_synchronize();
    for (std::size_t part = 0; part < 4; ++part)
      for (std::size_t i = 0; i < 100; ++i)
        ASSERT_EQ(memory[part][i], 4 * static_cast<float>(part + i));
  });
}

// If several ranks have NaNs at the same index, all ranks get the same NaN.
TEST_P(TransportSum, AllRanksGetTheSameNan) {
  for (const int ranks : {2, 4, 8})
    for (const std::size_t count : {500u, 10'000u}) {
      std::vector<std::vector<float>> results(static_cast<std::size_t>(ranks));
      run(ranks, [&](Transport& transport) {
        std::vector<float> values(count);
        for (std::size_t i = 0; i < count; ++i)
          values[i] =
              std::bit_cast<float>(0x7fc00001u + static_cast<std::uint32_t>(transport.rank()));
        Operation operation = operation_of(transport);
        operation.whole_bytes = 4 * count;
        transport.sum(operation, cut(values, even_counts(count, ranks))).wait_synchronize();
        results[static_cast<std::size_t>(transport.rank())] = values;
      });
      for (const auto& result : results)
        if (!result.empty() && !results.front().empty()) {
          ASSERT_EQ(std::memcmp(result.data(), results.front().data(), 4 * count), 0);
        }
    }
}

TEST_P(TransportSum, PartsMayBeUnaligned) {
  run(3, [](Transport& transport) {
    std::vector<std::byte> memory(3 * 40'002 + 2);
    const ValueSpan values(memory.data() + 2, memory.size() / 2 - 1, Dtype::kBf16);
    for (std::size_t i = 0; i < values.count(); ++i) {
      const Bf16 value = encoded(static_cast<float>(i % 7), Bf16{});
      std::memcpy(values.pointer() + 2 * i, &value, 2);
    }
    transport.sum(operation_of(transport), cut(values, even_counts(values.count(), 3)))
        .wait_synchronize();
    for (std::size_t i = 0; i < values.count(); ++i) {
      Bf16 value;
      std::memcpy(&value, values.pointer() + 2 * i, 2);
      ASSERT_EQ(decoded(value), 3 * static_cast<float>(i % 7)) << i;
    }
  });
}

TEST_P(TransportSum, IntegersWrapAround) {
  run(2, [](Transport& transport) {
    std::vector<std::int8_t> values = {100, -100};
    transport.sum(operation_of(transport), cut(values, {1, 1})).wait_synchronize();
    EXPECT_EQ(values, (std::vector<std::int8_t>{-56, 56}));
    std::vector<std::int32_t> large = {std::numeric_limits<std::int32_t>::max(), -1};
    transport.sum(operation_of(transport), cut(large, {1, 1})).wait_synchronize();
    EXPECT_EQ(large, (std::vector<std::int32_t>{-2, -2}));
  });
}

TEST_P(TransportSum, NanAndInfinityOnOneRankReachAllRanks) {
  on_all_ranks([](Transport& transport) {
    for (const std::size_t count : {4u, 50'000u}) {
      const auto counts = even_counts(count, transport.ranks());
      std::vector<float> sums(count, 1.0f), maxima(count, -1.0f);
      if (transport.rank() == 0) sums[3] = maxima[3] = std::nanf("");
      if (transport.rank() == transport.ranks() - 1) sums[1] = maxima[1] = INFINITY;
      transport.sum(operation_of(transport), cut(sums, counts)).wait_synchronize();
      transport.maximum(operation_of(transport), cut(maxima, counts)).wait_synchronize();
      EXPECT_TRUE(std::isnan(sums[3]) && std::isnan(maxima[3]));
      EXPECT_EQ(sums[1], INFINITY);
      EXPECT_EQ(maxima[1], INFINITY);
      EXPECT_EQ(sums[2], static_cast<float>(transport.ranks()));
      EXPECT_EQ(maxima[2], -1.0f);
    }
  });
}

// One rank pauses between two steps. Its messages must contain the values before the pause.
TEST_P(TransportSum, LateRankDoesNotChangeSums) {
  run(3, [](Transport& transport) {
    constexpr std::size_t kCount = 600'000;
    for (int late = 0; late < 3; ++late) {
      std::vector<float> values(kCount, static_cast<float>(transport.rank() + 1));
      if (transport.rank() == late) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      Handle handle = transport.sum(operation_of(transport), cut(values, even_counts(kCount, 3)));
      if (transport.rank() == late) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      handle.wait_synchronize();
      for (const float value : values) ASSERT_EQ(value, 6.0f);
    }
  });
}

}  // namespace
}  // namespace tersor::test
