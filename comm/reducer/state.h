// A reducer's state as bytes for checkpoints: exact (a single rank's state) or portable (the sum
// over ranks).
#pragma once

#include <tersor/modes.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tersor {

/// The contents of a checkpoint. docs/explain/algorithms.md explains the sum in the portable form.
struct ReducerState {
  enum class Form : std::uint8_t { kExact = 0, kPortable = 1 };

  struct Parameter {
    std::string name;
    std::string codec;                 ///< the codec's spec
    std::uint64_t count = 0;           ///< number of values
    std::uint64_t residual_first = 0;  ///< index of the first value with a residual on this rank
    /// this rank's sender residual; portable: the sum of all sender and owner residuals
    std::vector<float> residual;
    std::vector<float> owner;   ///< this rank's owner residual; empty in the portable form
    std::vector<float> memory;  ///< the codec's memory, equal on all encoding ranks
    /// Exact form: the maximum over ranks, so residuals of all ranks fit into a common array.
    std::uint64_t longest_residual = 0, longest_owner = 0;
  };

  Form form = Form::kExact;
  Reduction reduction = Reduction::kSum;
  std::uint32_t ranks = 0;
  std::uint32_t rank = 0;  ///< for the exact form
  std::uint32_t step = 0;
  std::vector<std::uint32_t> order;  ///< sending order; empty until learned
  std::vector<Parameter> parameters;
};

std::vector<std::byte> write_state(const ReducerState& state);

/// Throws InvalidArgumentError for bytes of another kind or version, and for truncated or damaged
/// bytes.
ReducerState read_state(std::span<const std::byte> bytes);

}  // namespace tersor
