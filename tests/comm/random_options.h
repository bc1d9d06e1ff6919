// Random pairs of option sets for disagreement between ranks.
#pragma once

#include <gtest/gtest.h>
#include <tersor/tersor.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace tersor::testing {

/// The options of a rank, with the option names of error texts.
struct OptionSet {
  std::string codec = "int8";
  Reduction reduction = Reduction::kSum;
  std::size_t chunk_count = 4096;
  std::uint32_t order = 0;
  std::size_t count = 5000;

  std::vector<std::pair<std::string, std::string>> named() const {
    return {{"codec", codec},
            {"reduction", reduction == Reduction::kSum ? "sum" : "mean"},
            {"chunk_count", std::to_string(chunk_count)},
            {"order in memory", std::to_string(order)},
            {"count", std::to_string(count)}};
  }
};

/// Draws two sets with 1 to 5 different options.
class OptionPairs {
 public:
  explicit OptionPairs(std::uint64_t seed) : random_(seed) {}

  std::pair<OptionSet, OptionSet> draw() {
    const OptionSet one = draw_set();
    for (;;) {
      OptionSet other = one;
      const OptionSet changed = draw_set();
      const unsigned which = below(31) + 1;
      if (which & 1) other.codec = changed.codec;
      if (which & 2) other.reduction = changed.reduction;
      if (which & 4) other.chunk_count = changed.chunk_count;
      if (which & 8) other.order = changed.order;
      if (which & 16) other.count = changed.count;
      if (one.named() != other.named()) return {one, other};
    }
  }

 private:
  unsigned below(unsigned limit) { return static_cast<unsigned>(random_() % limit); }

  OptionSet draw_set() {
    return {.codec = draw_codec(),
            .reduction = below(2) == 0 ? Reduction::kSum : Reduction::kMean,
            .chunk_count = 512 * (1 + below(20)),
            .order = below(5),
            .count = 3000 + below(9000)};
  }

  std::string draw_codec() {
    constexpr std::array kCodecs = {"int8", "int4", "bf16", "none", "topk", "blocktopk"};
    std::string codec = kCodecs[below(kCodecs.size())];
    if (codec == "topk") codec += ":density=0.0" + std::to_string(1 + below(98));
    return make_codec(codec)->spec().text();
  }

  std::mt19937_64 random_;
};

/// Returns the disagreement in the error of each rank. `run` runs a body on three ranks; rank 1 has
/// the second set of options.
inline std::vector<std::vector<Difference>> disagreements_of(
    const std::function<void(const std::function<void(Transport&)>&)>& run,
    const std::pair<OptionSet, OptionSet>& sets) {
  std::vector<std::vector<Difference>> found(3);
  run([&](Transport& transport) {
    const OptionSet& own = transport.rank() == 1 ? sets.second : sets.first;
    const CollectiveOptions options{.codec = own.codec,
                                    .reduction = own.reduction,
                                    .order = own.order,
                                    .chunk_count = own.chunk_count,
                                    .timeout = std::chrono::seconds(20)};
    std::vector<float> values(own.count);
    try {
      allreduce(transport, values, options);
      ADD_FAILURE() << "nothing was thrown on rank " << transport.rank();
    } catch (const TransportError& error) {
      found[static_cast<std::size_t>(transport.rank())] = error.disagreement();
      for (const Difference& one : error.disagreement())
        EXPECT_NE(std::string(error.what()).find(one.value), std::string::npos) << error.what();
    }
  });
  return found;
}

/// Expects every different option on every rank, with both values.
inline void expect_all_named(const std::vector<std::vector<Difference>>& found,
                             const std::pair<OptionSet, OptionSet>& sets) {
  const auto one = sets.first.named(), other = sets.second.named();
  for (const std::vector<Difference>& differences : found)
    for (std::size_t i = 0; i < one.size(); ++i) {
      const auto named = std::ranges::find(differences, one[i].first, &Difference::name);
      ASSERT_EQ(named != differences.end(), one[i].second != other[i].second) << one[i].first;
      if (named == differences.end()) continue;
      const bool first = named->rank == 1;
      EXPECT_EQ(first ? named->value : named->other_value, other[i].second);
      EXPECT_EQ(first ? named->other_value : named->value, one[i].second);
    }
}

/// `pairs` random pairs.
inline void expect_random_pairs_named(
    int pairs, const std::function<void(const std::function<void(Transport&)>&)>& run) {
  OptionPairs draws(56);
  for (int i = 0; i < pairs; ++i) {
    SCOPED_TRACE(::testing::Message() << "pair " << i);
    const auto sets = draws.draw();
    expect_all_named(disagreements_of(run, sets), sets);
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace tersor::testing
