// Gradients difficult to encode: ties, zeros, numbers at both ends of the range, non-finite values,
// and values unlike a sample.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace tersor::test {

struct ValueKind {
  const char* name;
  std::function<float(std::size_t i, std::size_t count, float gaussian)> value;
};

const std::vector<ValueKind>& hard_values();

/// `count` values of a kind. A seed gives the same values on every machine.
std::vector<float> values_of(const ValueKind& kind, std::size_t count, std::uint64_t seed);

}  // namespace tersor::test
