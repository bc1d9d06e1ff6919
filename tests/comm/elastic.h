// Elastic reducers of a few ranks, and losses of ranks, for tests.
#pragma once

#include <gtest/gtest.h>
#include <tersor/tersor.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "tests/comm/training.h"

namespace tersor::testing {

inline constexpr int kElasticRanks = 4;
inline constexpr int kVictim = 2;

inline ReducerOptions elastic(const std::string& codec = "int8+ef") {
  return {.codec = codec, .elastic = Elastic::kOn};
}

/// Runs `body` on each rank. A rank disconnects when its body returns.
inline void run_mortal(int ranks, const Link& link, const std::function<void(Transport&)>& body) {
  auto transports = make_inprocess_transports(ranks, link);
  std::vector<std::jthread> threads;
  for (auto& transport : transports)
    threads.emplace_back([&body, own = std::move(transport)] { body(*own); });
}

inline void run_mortal(const std::function<void(Transport&)>& body) {
  run_mortal(kElasticRanks, {}, body);
}

/// Runs `step` and expects lost ranks.
template <typename Step>
RanksLostError expect_lost(const Step& step) {
  try {
    step();
  } catch (const RanksLostError& lost) {
    return lost;
  }
  ADD_FAILURE() << "no rank is lost";
  return {"", {}, 0};
}

/// The gradient of Training::step.
inline Values given(int step, int rank) {
  return gaussian(kCount, static_cast<std::uint64_t>(step * 100 + rank));
}

/// Adds values to sums.
inline void add(std::vector<double>& sums, std::span<const float> values) {
  for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += values[i];
}

}  // namespace tersor::testing
