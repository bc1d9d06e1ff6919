// Argument checks before preparing a collective. All functions throw InvalidArgumentError.
#pragma once

#include "comm/collectives/prepared.h"

#include <tersor/auto.h>
#include <tersor/collectives.h>

#include <string_view>

namespace tersor {

/// A call of a collective with its input and output.
struct Call {
  Transport& transport;
  CallKind kind;
  ConstValueSpan input;
  ValueSpan output;
  int root = 0;

  /// True if this rank passes the whole input or output, as a root does.
  bool has_whole() const { return !has(kind, kRooted) || transport.rank() == root; }
  /// A span with the values of a parameter.
  ConstValueSpan param() const { return has(kind, kWholeInput) ? ConstValueSpan(output) : input; }
};

void check_call(const Call& call, const CollectiveOptions& options);
/// Checks the memory and dtype of a span. `name` is for error texts ("the gradient").
void check_span(const Transport& transport, const ConstValueSpan& span, std::string_view name);
void reject_feedback(const CollectiveOptions& options, std::string_view operation);

/// allreduce with codec "auto". The options must have a tuner and leave the choice to the tuner.
void allreduce_auto(Transport& transport, ValueSpan gradient, const CollectiveOptions& options,
                    StreamView stream);

/// Checks that the tuner measured for `memory`.
void check_tuner_memory(const Tuner& tuner, Memory memory);

/// Refuses codec "auto" for operations other than allreduce.
void reject_auto_codec(const CollectiveOptions& options, std::string_view operation);

/// The properties a prepared collective depends on.
CallKey make_key(const Call& call, const CollectiveOptions& options);

}  // namespace tersor
