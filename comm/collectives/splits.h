// The rows of an all_to_all: checking, planning, and binding to the memory of a call.
#pragma once

#include "comm/collectives/prepared.h"

#include <tersor/collectives.h>

#include <cstddef>
#include <vector>

namespace tersor {

/// Rows sent to and received from each rank. On a grid, `passing` holds forwarded rows in shard
/// order.
struct Rows {
  std::vector<std::size_t> sent, received, forwarded = {};
};

/// The rows of a call. Throws InvalidArgumentError with the rank if rows do not match the spans or
/// the spans overlap.
Rows rows_of(const Transport& transport, const ConstValueSpan& input, const ConstValueSpan& output,
             std::size_t columns, const Splits& splits);

/// Receives the numbers of rows to be forwarded by this rank. Collective, blocking.
void receive_forwarded_counts(const PreparedCall& prepared, Transport& transport, Rows& rows);

/// fits_plan: true if the current plan fits these row counts (forwarded rows included, if known).
/// `replan` keeps codec, pipeline and buffers: rows change in each step of a mixture of experts.
bool fits_plan(const PreparedCall& prepared, const Rows& rows);
void replan(PreparedCall& prepared, const Rows& rows);

/// Binds the memory of all rows.
void bind_rows(PreparedCall& prepared, const ConstValueSpan& input, const ValueSpan& output);

}  // namespace tersor
