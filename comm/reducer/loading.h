// Checks a state before loading, and describes the record compared by ranks after loading.
#pragma once

#include "comm/reducer/parameters.h"
#include "comm/reducer/state.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace tersor {

/// The owners of a residual in a portable state: all ranks together, or this rank alone.
enum class HeldBy : std::uint8_t { kAll, kThisRank };

/// The factor from a parameter's residual in the state to this reducer's residual. 1 for an exact
/// state.
float loading_factor(const ReducerState& state, HeldBy holders, const Parameters& parameters,
                     std::size_t parameter);

/// Throws InvalidArgumentError if the state is of another model or of other ranks. Also throws for
/// a sending order other than a permutation, and for infinite values and NaN.
void check_state(const ReducerState& state, const Parameters& parameters);

/// The part of a loaded state that must be equal on all ranks. Ranks exchange this record in the
/// first step after loading.
struct LoadedState {
  std::uint32_t step = 0;
  ReducerState::Form form = ReducerState::Form::kExact;
  std::uint8_t unused[3] = {};
  /// hash of the number of ranks, the codecs, the memories encoded by all ranks, and the caller's
  /// own hash
  std::uint64_t digest = 0;
};
static_assert(sizeof(LoadedState) == 16 && std::is_trivially_copyable_v<LoadedState>);

LoadedState describe(const ReducerState& state, const Parameters& parameters, std::uint64_t common);

/// `records`: one record per rank. If records differ, throws a TransportError with the numbers and
/// states of two ranks.
void check_same_state(std::span<const LoadedState> records);

}  // namespace tersor
