// Labelled examples for training.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace trainer {

/// Row-major inputs with labels.
struct Examples {
  std::vector<float> inputs;
  std::vector<std::uint32_t> labels;

  std::size_t count() const { return labels.size(); }
};

}  // namespace trainer
