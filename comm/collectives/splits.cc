// See splits.h.
#include "comm/collectives/splits.h"

#include "comm/collectives/planner.h"

#include <functional>
#include <numeric>
#include <string>
#include <string_view>

namespace tersor {
namespace {

/// One of the two spans of a call, for messages.
struct Side {
  int rank;
  int ranks;
  std::string_view span;   ///< "input"
  std::string_view split;  ///< "sent"
};

[[noreturn]] void refuse(const Side& side, const std::string& what) {
  throw InvalidArgument("all_to_all on rank " + std::to_string(side.rank) + ": " + what);
}

std::size_t rows_in(const Side& side, std::size_t count, std::size_t columns) {
  if (columns == 0) refuse(side, "columns is 0: a row has a value at least");
  if (count % columns != 0)
    refuse(side, "the " + std::string(side.span) + " has " + std::to_string(count) +
                     " values, which are no rows of " + std::to_string(columns));
  return count / columns;
}

std::vector<std::size_t> equal_rows(const Side& side, std::size_t rows) {
  const auto ranks = static_cast<std::size_t>(side.ranks);
  if (rows % ranks != 0)
    refuse(side, "the " + std::to_string(rows) + " rows of the " + std::string(side.span) +
                     " are not equally many for " + std::to_string(ranks) +
                     " ranks: say Splits::" + std::string(side.split));
  return std::vector<std::size_t>(ranks, rows / ranks);
}

std::vector<std::size_t> split_rows(const Side& side, std::size_t rows,
                                    std::span<const std::size_t> split) {
  if (split.empty()) return equal_rows(side, rows);
  const std::string name = "Splits::" + std::string(side.split);
  if (split.size() != static_cast<std::size_t>(side.ranks))
    refuse(side, name + " has " + std::to_string(split.size()) + " numbers for " +
                     std::to_string(side.ranks) + " ranks");
  const std::size_t sum = std::accumulate(split.begin(), split.end(), std::size_t{0});
  if (sum != rows)
    refuse(side, name + " adds up to " + std::to_string(sum) + " rows, but the " +
                     std::string(side.span) + " has " + std::to_string(rows));
  return {split.begin(), split.end()};
}

bool overlap(const ConstValueSpan& one, const ConstValueSpan& other) {
  const std::less<> before;
  return !one.empty() && !other.empty() && before(one.pointer(), other.pointer() + other.bytes()) &&
         before(other.pointer(), one.pointer() + one.bytes());
}

/// Where the rows from a rank are kept.
std::size_t received_slot(const Prepared& prepared, std::size_t rank) {
  const bool own = static_cast<int>(rank) == prepared.context.rank;
  return own ? rank : static_cast<std::size_t>(prepared.context.ranks) + rank;
}

}  // namespace

Rows rows_of(const Transport& transport, const ConstValueSpan& input, const ConstValueSpan& output,
             std::size_t columns, const Splits& splits) {
  const Side from{transport.rank(), transport.ranks(), "input", "sent"};
  const Side to{transport.rank(), transport.ranks(), "output", "received"};
  Rows rows{split_rows(from, rows_in(from, input.count(), columns), splits.sent),
            split_rows(to, rows_in(to, output.count(), columns), splits.received)};
  const auto own = static_cast<std::size_t>(transport.rank());
  if (rows.sent[own] != rows.received[own])
    refuse(from, "it sends itself " + std::to_string(rows.sent[own]) + " rows but takes " +
                     std::to_string(rows.received[own]) + " of its own");
  if (overlap(input, output)) refuse(from, "input and output overlap");
  return rows;
}

bool are_planned(const Prepared& prepared, const Rows& rows) {
  const std::size_t columns = prepared.key.count;
  if (prepared.chunks.empty()) return false;
  for (std::size_t rank = 0; rank < rows.sent.size(); ++rank)
    if (prepared.slots[rank].count != rows.sent[rank] * columns ||
        prepared.slots[received_slot(prepared, rank)].count != rows.received[rank] * columns)
      return false;
  return true;
}

void plan(Prepared& prepared, const Rows& rows) {
  const std::size_t columns = prepared.key.count;
  for (Slot& slot : prepared.slots) slot.count = slot.first_index = 0;
  for (std::size_t rank = 0; rank < rows.sent.size(); ++rank) {
    prepared.slots[rank].count = rows.sent[rank] * columns;
    prepared.slots[received_slot(prepared, rank)].count = rows.received[rank] * columns;
  }
  prepared.chunks.clear();
  prepared.chunks = Planner(prepared.context, nullptr, prepared.key.threads).by_rows(columns);
  prepared.pipeline->prepare(prepared.chunks.front(), 1);
  prepared.context.in_order = prepared.context.on_device();
}

void bind_rows(Prepared& prepared, const ConstValueSpan& input, const ValueSpan& output) {
  std::size_t sent = 0, received = 0;
  for (std::size_t rank = 0; rank < static_cast<std::size_t>(prepared.context.ranks); ++rank) {
    Slot& from = prepared.slots[rank];
    from.input = input.subspan(sent, from.count);
    sent += from.count;
    Slot& to = prepared.slots[received_slot(prepared, rank)];
    to.output = output.subspan(received, to.count);
    received += to.count;
  }
}

}  // namespace tersor
