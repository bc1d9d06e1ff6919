// Executes the schedules of all ranks with symbolic values and records additions and encodings.
// Detects messages without a receiver, lost or repeated contributions, and ranks with different
// expressions (different bits).
#pragma once

#include "comm/collectives/schedule.h"

#include <cstddef>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace tersor::testing {

/// An expression is its index among all known expressions. Equal expressions have equal indices.
using Expression = std::size_t;

class Expressions {
 public:
  Expression gradient(int rank) { return find({kGradient, {static_cast<std::size_t>(rank)}}); }
  Expression encoded(Expression value) { return find({kEncoded, {value}}); }
  Expression raw(Expression value) { return find({kRaw, {value}}); }
  /// A sum in this order. The sum of a single value is the value.
  Expression sum(const std::vector<Expression>& values);

  /// Number of occurrences of each rank's gradient, and the maximum number of encodings of a
  /// gradient.
  std::map<int, int> contributions(Expression value) const;
  int encodings(Expression value) const;
  /// A text, equal for equal expressions of several walks.
  std::string text(Expression value) const;

 private:
  enum Kind { kGradient, kEncoded, kRaw, kSum };
  struct Node {
    Kind kind;
    std::vector<std::size_t> of;
    auto operator<=>(const Node&) const = default;
  };
  Expression find(Node node);

  std::map<Node, Expression> known_;
  std::vector<Node> nodes_;
};

/// The contents of a collective's shards, in parts of the gradient never divided further.
struct Layout {
  std::vector<Schedule> schedules;                           ///< of each rank
  std::vector<std::vector<std::vector<std::size_t>>> parts;  ///< [rank][shard]: parts of a shard
  std::set<std::size_t> raw_shards = {};                     ///< sent raw within a host
  std::size_t part_count = 0;
  std::vector<int> hosts = {};  ///< of each rank; empty: no two ranks share a host
};

Layout flat_layout(const std::function<Schedule(const Group&)>& schedule_by, int ranks,
                   std::size_t shards);
Layout grid_layout(const Grid& grid);
Layout hierarchical_layout(const std::vector<int>& hosts, Exchange between);
/// A part per rank, for hosts with equal numbers of ranks, and on a grid.
Layout hierarchical_scatter_layout(const std::vector<int>& hosts);
Layout hierarchical_gather_layout(const std::vector<int>& hosts);
Layout owned_layout(const std::function<Schedule(const Group&)>& schedule_by,
                    const std::vector<Group>& all_groups);

/// Number of messages sent by a rank in an allreduce on a grid. An owner sends to the owners of
/// each dimension, and sends back its sums. A rank without a part sends only its own values.
std::size_t messages_of(const Grid& grid, int rank);

/// The data sent by a rank to other ranks.
struct Sent {
  std::size_t messages = 0;
  double encoded = 0;  ///< in gradients
  double raw = 0;
  double abroad = 0;  ///< of both, to other hosts
};

class ScheduleWalk {
 public:
  /// values[rank][part] at the start: the gradient of each rank.
  explicit ScheduleWalk(const Layout& layout);

  /// Returns a sentence about the first error, or "".
  std::string run();

  Expression value(int rank, std::size_t part) const { return values_[size(rank)][part]; }
  const Sent& sent(int rank) const { return sent_[size(rank)]; }
  Expressions& expressions() { return expressions_; }

 private:
  /// The message contents of one shard.
  struct Content {
    std::size_t shard;
    int from;
    std::vector<Expression> values;
  };
  using Contents = std::vector<Content>;

  static std::size_t size(int rank) { return static_cast<std::size_t>(rank); }
  int ranks() const { return static_cast<int>(layout_.schedules.size()); }
  const Step& step(int rank) const { return layout_.schedules[size(rank)][step_]; }
  const std::vector<std::size_t>& parts(int rank, std::size_t shard) const {
    return layout_.parts[size(rank)][shard];
  }
  std::string fault(int rank, const std::string& what) const;
  std::vector<Expression> made(int rank, std::size_t shard);
  std::string deliver(int rank);
  std::string open(int rank, const StepMessage& message, Contents contents);
  void take(int rank);
  void add_raw();
  void count(int rank, const StepMessage& message);

  const Layout& layout_;
  Expressions expressions_;
  std::size_t step_ = 0;
  std::vector<std::vector<Expression>> values_;
  std::vector<std::map<int, Contents>> in_flight_;  ///< [to][from]
  std::vector<Contents> received_, retained_;
  std::vector<Sent> sent_;
};

}  // namespace tersor::testing
