// Norms in double over blocks processed by several threads. The sums of blocks are added in order.

#include "bench/common/compare.h"

#include <fmt/format.h>
#include <tersor/align.h>
#include <tersor/error.h>
#include <tersor/threads.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/scalar/convert.h"

namespace tersor::bench {
namespace {

constexpr std::size_t kBlockOfSums = std::size_t{1} << 16;

/// Squared sums of a block.
struct Sums {
  double difference = 0;
  double expected = 0;
};

/// Calls `visit(first, last)` for blocks of [0, count) and adds the results.
template <typename Visit>
Sums sum_blocks(std::size_t count, Visit visit) {
  std::vector<Sums> blocks(ceil_div(count, kBlockOfSums));
  Threads threads(0);
  threads.run(blocks.size(), [&](std::size_t block) {
    blocks[block] = visit(block * kBlockOfSums, std::min(count, (block + 1) * kBlockOfSums));
  });
  Sums all;
  for (const Sums& sums : blocks) {
    all.difference += sums.difference;
    all.expected += sums.expected;
  }
  return all;
}

/// `expected(i)` is the expected value at index i.
template <typename Expected>
Sums sums_of(Expected expected, ConstValueSpan actual) {
  return visit_gradient_dtype(actual.dtype(), [&]<typename T>(T) {
    const auto values = actual.as<T>();
    return sum_blocks(actual.count(), [&](std::size_t first, std::size_t last) {
      Sums sums;
      for (std::size_t i = first; i < last; ++i) {
        const double reference = expected(i);
        const double difference = kernels::to_f32(values[i]) - reference;
        sums.difference += difference * difference;
        sums.expected += reference * reference;
      }
      return sums;
    });
  });
}

Sums sums_of(ConstValueSpan expected, ConstValueSpan actual) {
  return visit_gradient_dtype(expected.dtype(), [&]<typename T>(T) {
    const auto values = expected.as<T>();
    return sums_of([values](std::size_t i) { return double{kernels::to_f32(values[i])}; }, actual);
  });
}

double ratio(const Sums& sums) {
  return sums.difference == 0 ? 0 : std::sqrt(sums.difference / sums.expected);
}

}  // namespace

double relative_error(ConstValueSpan expected, ConstValueSpan actual) {
  return ratio(sums_of(expected, actual));
}

double relative_error(std::span<const double> expected, ConstValueSpan actual) {
  return ratio(sums_of([expected](std::size_t i) { return expected[i]; }, actual));
}

double norm(ConstValueSpan values) { return std::sqrt(sums_of(values, values).expected); }

void require_within(double error, double limit, std::string_view what) {
  if (!(error <= limit))
    throw Error(fmt::format("{}: relative error {:.3g}, more than {:.3g}", what, error, limit));
}

void add_values(double factor, ConstValueSpan values, std::span<double> sum) {
  visit_gradient_dtype(values.dtype(), [&]<typename T>(T) {
    const auto typed = values.as<T>();
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += factor * kernels::to_f32(typed[i]);
  });
}

bool same_bits(ConstByteSpan a, ConstByteSpan b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size()) == 0;
}

// Mixes words with their offsets as in SplitMix64 (Steele, Lea and Flood 2014).
std::uint64_t fingerprint(ConstByteSpan bytes) {
  std::uint64_t sum = bytes.size();
  for (std::size_t first = 0; first < bytes.size(); first += sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + first, std::min(sizeof(word), bytes.size() - first));
    word += (first + 1) * 0x9e3779b97f4a7c15u;
    word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9u;
    word = (word ^ (word >> 27)) * 0x94d049bb133111ebu;
    sum += word ^ (word >> 31);
  }
  return sum;
}

}  // namespace tersor::bench
