// Gives what was prepared the memory of one call: options, stream, states.
#pragma once

#include "comm/collectives/prepared.h"

#include <tersor/collectives.h>
#include <tersor/stream.h>

#include <string_view>

namespace tersor {

/// All but the values and their states.
void bind_call(Prepared& prepared, Transport& transport, const CollectiveOptions& options,
               StreamView stream);

/// The residuals. Throws InvalidArgument where one has not the count that this rank needs, or lies
/// elsewhere than the values.
void bind_state(Prepared& prepared, const CollectiveOptions& options);
/// Where a reduce-scatter by hosts adds up what this rank's host gives.
void bind_host_sums(Prepared& prepared, const ValueSpan& shard);

/// Throws InvalidArgument where a transport does not take such memory; `what` lies there.
void check_taken(const Transport& transport, Memory memory, std::string_view what);

/// For messages: "on the host" or "on a device".
std::string_view memory_text(Memory memory);

}  // namespace tersor
