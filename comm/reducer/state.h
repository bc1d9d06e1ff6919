// A reducer's state as bytes, for checkpoints: exact (one rank's own) or portable (the ranks' sum).
#pragma once

#include <tersor/modes.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tersor {

/// What a checkpoint holds. docs/algorithms.md says why the portable form is a sum.
struct ReducerState {
  enum class Form : std::uint8_t { kExact = 0, kPortable = 1 };

  struct Parameter {
    std::string name;
    std::string codec;                 ///< its spec
    std::uint64_t count = 0;           ///< of the parameter
    std::uint64_t residual_first = 0;  ///< value that this rank's residual begins at
    std::vector<float> residual;       ///< this rank's, or senders' and owners' summed over ranks
    std::vector<float> owner;          ///< this rank's own part; empty in the portable form
    std::vector<float> memory;         ///< the codec's own, the same on all ranks that encode
    /// Of all ranks' in the exact form, so that they can be kept side by side in one array.
    std::uint64_t longest_residual = 0, longest_owner = 0;
  };

  Form form = Form::kExact;
  Reduction reduction = Reduction::kSum;
  std::uint32_t ranks = 0;
  std::uint32_t rank = 0;  ///< of the exact form
  std::uint32_t step = 0;
  std::vector<std::uint32_t> order;  ///< of sending; empty: not learned yet
  std::vector<Parameter> parameters;
};

std::vector<std::byte> write_state(const ReducerState& state);

/// Throws InvalidArgument where the bytes are no state, of another version, cut off or damaged.
ReducerState read_state(std::span<const std::byte> bytes);

}  // namespace tersor
