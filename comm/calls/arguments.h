// What collectives check before anything is prepared. All throw InvalidArgument.
#pragma once

#include "comm/collectives/prepared.h"

#include <tersor/auto.h>
#include <tersor/collectives.h>

#include <string_view>

namespace tersor {

/// A call of a collective: what goes in, and where the result comes.
struct Call {
  Transport& transport;
  Kind kind;
  ConstValueSpan input;
  ValueSpan output;
  int root = 0;

  /// Whether this rank gives, or gets, what a root has.
  bool has_whole() const { return !has(kind, kRooted) || transport.rank() == root; }
  /// A span of a slot's values.
  ConstValueSpan slot() const { return has(kind, kWholeInput) ? ConstValueSpan(output) : input; }
};

void check_call(const Call& call, const CollectiveOptions& options);
/// That a transport takes such values; `name` is for messages ("the gradient").
void check_span(const Transport& transport, const ConstValueSpan& span, std::string_view name);
void refuse_feedback(const CollectiveOptions& options, std::string_view operation);

/// allreduce by codec "auto", where the options leave a choice to make and have a tuner to make it.
void allreduce_automatically(Transport& transport, ValueSpan gradient,
                             const CollectiveOptions& options, StreamView stream);

/// That the tuner measured for this memory.
void check_tuner_memory(const Tuner& tuner, Memory memory);

/// That codec "auto" is not asked for: of `operation` nothing is known.
void refuse_automatic(const CollectiveOptions& options, std::string_view operation);

/// What a call depends on.
Key make_key(const Call& call, const CollectiveOptions& options);

}  // namespace tersor
