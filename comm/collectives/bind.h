// Binds the memory of a call to a prepared collective: options, stream and states.
#pragma once

#include "comm/collectives/prepared.h"

#include <tersor/collectives.h>
#include <tersor/stream.h>

#include <string_view>

namespace tersor {

/// Binds everything except the values and states.
void bind_call(PreparedCall& prepared, Transport& transport, const CollectiveOptions& options,
               StreamView stream);

/// Binds the residuals. Throws InvalidArgumentError if a residual has a wrong count for this rank
/// or a memory different from the values.
void bind_state(PreparedCall& prepared, const CollectiveOptions& options);
/// Binds the memory for the host's sums in a hierarchical reduce-scatter.
void bind_host_sums(PreparedCall& prepared, const ValueSpan& shard);

/// Throws InvalidArgumentError if the transport does not accept `memory`. `what` names the values.
void check_memory_supported(const Transport& transport, Memory memory, std::string_view what);

/// "on the host" or "on a device", for error texts.
std::string_view memory_text(Memory memory);

}  // namespace tersor
