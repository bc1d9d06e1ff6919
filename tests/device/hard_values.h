// Kinds of gradients that are hard to encode: ties, zeros, numbers at either end of the range, what
// is no number, and values that are not like a sample of them.
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

/// `count` values of a kind; the same for the same seed on every machine.
std::vector<float> values_of(const ValueKind& kind, std::size_t count, std::uint64_t seed);

}  // namespace tersor::test
