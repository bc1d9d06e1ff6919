// What an all_to_all sends to whom: rows, checked, planned and bound to the memory of a call.
#pragma once

#include "comm/collectives/prepared.h"

#include <tersor/collectives.h>

#include <cstddef>
#include <vector>

namespace tersor {

/// Rows that go to each rank, and that come from each; and on a grid those that others send by way
/// of this rank, in the order of their lanes.
struct Rows {
  std::vector<std::size_t> sent, received, passing = {};
};

/// Those of a call. Throws InvalidArgument that names the rank where they are not the spans' rows,
/// or the spans overlap.
Rows rows_of(const Transport& transport, const ConstValueSpan& input, const ConstValueSpan& output,
             std::size_t columns, const Splits& splits);

/// Asks those who send by way of this rank how much that will be: all ranks call it. Waits.
void learn_passing(const Prepared& prepared, Transport& transport, Rows& rows);

/// Whether an all_to_all was planned for these rows, of those that pass where they are known; and
/// plans it. Codec, pipeline and buffers stay, since rows are others in each step of a mixture of
/// experts.
bool are_planned(const Prepared& prepared, const Rows& rows);
void plan(Prepared& prepared, const Rows& rows);

/// The memory of all rows.
void bind_rows(Prepared& prepared, const ConstValueSpan& input, const ValueSpan& output);

}  // namespace tersor
