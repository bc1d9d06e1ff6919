// A reducer's residuals as a checkpoint, and back. With the step's lock held, where nothing is
// under way.
#pragma once

#include "comm/reducer/parameters.h"
#include "comm/reducer/state.h"
#include "comm/reducer/ways.h"

#include <functional>
#include <vector>

namespace tersor {

/// What this rank keeps of each parameter.
std::vector<ReducerState::Parameter> exact_state(const Parameters& parameters, const Ways& ways,
                                                 StreamView stream);

/// Replaces values by their sum over all ranks; a collective call.
using SumOverRanks = std::function<void(std::vector<float>& values)>;

/// Makes the exact state one that fits other ranks: the sum over ranks of all senders' and owners'
/// residuals, which would still be added some day. Of the codecs' memories, which are equal, one
/// rank's.
void make_portable(ReducerState& state, const Parameters& parameters, const SumOverRanks& sum);

/// Throws InvalidArgument where it is another model's, or other ranks' own.
void check_state(const ReducerState& state, const Parameters& parameters);

/// Of a state that was checked, whose codecs the parameters have by now, where "auto" chose them.
void load_residuals(const ReducerState& state, Parameters& parameters, StreamView stream);

}  // namespace tersor
