// allreduce by codec "auto": asks the tuner, goes that way, and tells it how long that took.
#pragma once

#include <tersor/collectives.h>

#include <string_view>

namespace tersor {

/// Throws InvalidArgument where the options leave no choice to make, or have no tuner to make it.
void allreduce_automatically(Transport& transport, ValueSpan gradient,
                             const CollectiveOptions& options, StreamView stream);

/// Throws InvalidArgument where the tuner measured for the other memory.
void check_tuner_memory(const Tuner& tuner, Memory memory);

/// Throws InvalidArgument where codec "auto" is asked for: of `operation` nothing is known.
void refuse_automatic(const CollectiveOptions& options, std::string_view operation);

}  // namespace tersor
