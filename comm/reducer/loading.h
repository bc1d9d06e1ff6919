// Checks of a state before a reducer loads the state, and the record by which ranks compare the
// states that they loaded.
#pragma once

#include "comm/reducer/parameters.h"
#include "comm/reducer/state.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace tersor {

/// Of a residual that is one rank's no more: who owed it, all ranks together or this one alone.
enum class OwedBy : std::uint8_t { kAll, kThisRank };

/// The factor of a parameter's residual from the state to this reducer's memory: 1 for an exact
/// state.
float loading_factor(const ReducerState& state, OwedBy whom, const Parameters& parameters,
                     std::size_t parameter);

/// Throws InvalidArgument if the state is of another model, belongs to other ranks, or holds a
/// sending order that is no permutation or a value that is not finite.
void check_state(const ReducerState& state, const Parameters& parameters);

/// The fields of a loaded state that are equal on all ranks. Ranks exchange the record in the first
/// step after loading.
struct LoadedState {
  std::uint32_t step = 0;
  ReducerState::Form form = ReducerState::Form::kExact;
  std::uint8_t unused[3] = {};
  std::uint64_t digest = 0;  ///< of the number of ranks, codecs, and memories that all ranks encode
};
static_assert(sizeof(LoadedState) == 16 && std::is_trivially_copyable_v<LoadedState>);

LoadedState describe(const ReducerState& state, const Parameters& parameters);

/// Throws TransportError, which names two ranks and their states, if records differ. `records`:
/// of all ranks, by rank.
void check_alike(std::span<const LoadedState> records);

}  // namespace tersor
