// Weights of a parameter server, and gradients of the workers.
#pragma once

#include "tests/comm/ranks.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tersor::testing {

inline const std::vector<std::size_t> kServed = {1, 5'000, 0, 700, 12'345};  // per parameter

using ServedWeights = std::vector<Values>;

inline ServedWeights no_weights() {
  ServedWeights weights;
  for (const std::size_t count : kServed) weights.emplace_back(count);
  return weights;
}

inline ServedWeights gradient_of(int worker, std::uint32_t clock) {
  ServedWeights gradient;
  for (const std::size_t count : kServed)
    gradient.push_back(gaussian(count, 100 * clock + static_cast<std::uint64_t>(worker) + count));
  return gradient;
}

template <typename Span>
std::vector<Span> spans(ServedWeights& weights) {
  return {weights.begin(), weights.end()};
}

}  // namespace tersor::testing
