#include "comm/collectives/splits.h"

#include "codecs/apart.h"
#include "comm/collectives/planner.h"
#include "comm/transport/arguments.h"
#include "kernels/host/checksum.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <span>
#include <string>
#include <string_view>

namespace tersor {
namespace {

/// A span of a call, for error texts.
struct Side {
  int rank;
  int ranks;
  std::string_view span;   ///< "input"
  std::string_view split;  ///< "sent"
};

[[noreturn]] void reject(const Side& side, const std::string& what) {
  throw InvalidArgumentError("all_to_all on rank " + std::to_string(side.rank) + ": " + what);
}

std::size_t rows_in(const Side& side, std::size_t count, std::size_t columns) {
  if (columns == 0) reject(side, "columns is 0: give at least 1");
  if (count % columns != 0)
    reject(side, "the " + std::string(side.span) + " has " + std::to_string(count) +
                     " values: give a multiple of columns, " + std::to_string(columns));
  return count / columns;
}

std::vector<std::size_t> equal_rows(const Side& side, std::size_t rows) {
  const auto ranks = static_cast<std::size_t>(side.ranks);
  if (rows % ranks != 0)
    reject(side, "the " + std::to_string(rows) + " rows of the " + std::string(side.span) +
                     " are not a multiple of " + std::to_string(ranks) + " ranks: give " +
                     std::string(side.split));
  return std::vector<std::size_t>(ranks, rows / ranks);
}

std::vector<std::size_t> split_rows(const Side& side, std::size_t rows,
                                    std::span<const std::size_t> split) {
  if (split.empty()) return equal_rows(side, rows);
  const std::string name(side.split);
  if (split.size() != static_cast<std::size_t>(side.ranks))
    reject(side, name + " has " + std::to_string(split.size()) + " numbers for " +
                     std::to_string(side.ranks) + " ranks: give one number per rank");
  for (const std::size_t one : split)
    if (one > rows)
      reject(side, name + " contains " + std::to_string(one) + ", but the " +
                       std::string(side.span) + " has " + std::to_string(rows) + " rows");
  const std::size_t sum = std::accumulate(split.begin(), split.end(), std::size_t{0});
  if (sum != rows)
    reject(side, name + " adds up to " + std::to_string(sum) + " rows, but the " +
                     std::string(side.span) + " has " + std::to_string(rows));
  return {split.begin(), split.end()};
}

/// The count of each shard. Forwarded rows keep their current counts if unknown.
std::vector<std::size_t> counts_of(const PreparedCall& prepared, const Rows& rows) {
  const Group group = prepared.group();
  std::vector<std::size_t> counts(prepared.params.size());
  std::ranges::transform(prepared.params, counts.begin(), &ExchangeParameter::count);
  const std::size_t columns = prepared.key.values.count, n = group.members.size();
  for (std::size_t i = 0; i < rows.forwarded.size(); ++i)
    counts[n + i] = rows.forwarded[i] * columns;
  for (int group_rank = 0; group_rank < static_cast<int>(n); ++group_rank) {
    const auto rank = static_cast<std::size_t>(group.rank_at(group_rank));
    counts[shard_to(group, group_rank)] = rows.sent[rank] * columns;
    counts[shard_from(group, group_rank)] = rows.received[rank] * columns;
  }
  return counts;
}

using Counts = std::vector<std::uint64_t>;

std::uint64_t checksum_of(const std::uint64_t* counts, std::size_t count) {
  return kernels::checksum(counts, count * sizeof *counts / sizeof(std::uint32_t), 0);
}

/// The rows of all shards for the members of a rank's group, in shard order.
Counts announced(const Group& group, const Rows& rows) {
  Counts counts(group.members.size());
  for (int group_rank = 0; group_rank < static_cast<int>(counts.size()); ++group_rank)
    counts[shard_to(group, group_rank)] =
        rows.sent[static_cast<std::size_t>(group.rank_at(group_rank))];
  return counts;
}

/// Appends a checksum to each part of `each` counts, because receivers allocate memory by these
/// counts.
Counts with_checksums(const Counts& counts, std::size_t each) {
  Counts all;
  for (std::size_t first = 0; first < counts.size(); first += each) {
    all.insert(all.end(), &counts[first], &counts[first] + each);
    all.push_back(checksum_of(&counts[first], each));
  }
  return all;
}

/// The counts each member of an ascending group announces for this rank. A library without other
/// host messages sends all counts to all ranks.
std::vector<Counts> exchange_counts(const ExchangeContext& context, Transport& transport,
                                    std::span<const int> subgroup, const Counts& own) {
  const auto index = static_cast<std::size_t>(index_in(subgroup, context.ranks.rank));
  const std::size_t each = own.size() / subgroup.size(), bytes = (each + 1) * sizeof own.front();
  const Counts announced = with_checksums(own, each);
  const auto all = std::as_bytes(std::span(announced));
  std::vector<SendTo> sends;
  std::vector<ReceiveFrom> receives;
  for (std::size_t i = 0; i < subgroup.size(); ++i) {
    if (i == index) continue;
    sends.push_back({subgroup[i], all.subspan(i * bytes, bytes)});
    receives.push_back({subgroup[i], bytes});
  }
  const Operation operation = context.operation(context.call.name);
  const bool gathers_all = !transport.traits().host;
  Handle handle = gathers_all ? transport.all_gather(operation, all, all.size())
                              : transport.exchange(operation, sends, receives);
  handle.wait_synchronize();
  std::vector<Counts> counts(subgroup.size(), Counts(each + 1));
  for (std::size_t i = 0; i < subgroup.size(); ++i) {
    ConstByteSpan from = i == index ? all : handle.received(subgroup[i]);
    if (from.size() < (i == index || gathers_all ? all.size() : bytes))
      throw TransportError(std::string(context.call.name) + ": rank " +
                           std::to_string(subgroup[i]) + " sent the row counts of too few ranks");
    if (i == index || gathers_all) from = from.subspan(index * bytes);
    std::memcpy(counts[i].data(), from.first(bytes).data(), bytes);
    if (counts[i].back() != checksum_of(counts[i].data(), each))
      throw WireError(std::string(context.call.name) + " on rank " +
                      std::to_string(context.ranks.rank) + ": the row counts of rank " +
                      std::to_string(subgroup[i]) + " were damaged in transit");
    counts[i].pop_back();
  }
  return counts;
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
    reject(from, "the rank sends " + std::to_string(rows.sent[own]) +
                     " rows to itself but receives " + std::to_string(rows.received[own]) +
                     " from itself: give equal numbers");
  if (encoding::overlap(input, output)) reject(from, "input and output overlap");
  return rows;
}

void receive_forwarded_counts(const PreparedCall& prepared, Transport& transport, Rows& rows) {
  const Group group = prepared.group();
  if (group.grid.dimensions() == 1) return;
  std::vector<int> subgroup = group.grid.subgroup(group.rank, 0);
  for (int& member : subgroup) member = group.rank_at(member);
  const std::vector<Counts> all =
      exchange_counts(prepared.context, transport, subgroup, announced(group, rows));
  rows.forwarded.resize(group.members.size());
  for (std::size_t i = 0; i < all.size(); ++i)
    for (std::size_t shard = 0; shard < all[i].size(); ++shard)
      rows.forwarded[shard * all.size() + i] = all[i][shard];
}

bool fits_plan(const PreparedCall& prepared, const Rows& rows) {
  return !prepared.chunks.empty() && std::ranges::equal(prepared.params, counts_of(prepared, rows),
                                                        {}, &ExchangeParameter::count);
}

void replan(PreparedCall& prepared, const Rows& rows) {
  const std::vector<std::size_t> counts = counts_of(prepared, rows);
  for (std::size_t i = 0; i < counts.size(); ++i) {
    prepared.params[i].count = counts[i];
    prepared.params[i].first_index = 0;
  }
  prepared.chunks.clear();
  const CallKey& key = prepared.key;
  prepared.chunks =
      Planner(prepared.context).by_rows(prepared.group(), key.values.count, key.chunk_count);
  prepared.pipeline->prepare(prepared.chunks.front(), prepared.chunks.size());
  prepared.context.device.in_order = prepared.context.on_device();
}

void bind_rows(PreparedCall& prepared, const ConstValueSpan& input, const ValueSpan& output) {
  const Group group = prepared.group();
  std::vector<int> by_rank = all_ranks(prepared.context.ranks.count);
  std::ranges::sort(by_rank, {}, [&](int group_rank) { return group.rank_at(group_rank); });
  std::size_t sent = 0, received = 0;
  for (const int group_rank : by_rank) {
    const std::size_t to = shard_to(group, group_rank), from = shard_from(group, group_rank);
    prepared.bindings[to].input = input.subspan(sent, prepared.params[to].count);
    sent += prepared.params[to].count;
    prepared.bindings[from].output = output.subspan(received, prepared.params[from].count);
    received += prepared.params[from].count;
  }
}

}  // namespace tersor
