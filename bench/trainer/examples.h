// Labelled examples to learn from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace trainer {

/// Inputs row after row, and their labels.
struct Examples {
  std::vector<float> inputs;
  std::vector<std::uint32_t> labels;

  std::size_t count() const { return labels.size(); }
};

}  // namespace trainer
