// Walks the schedules of all ranks at once, with symbols for values: who was added to whom, and
// what was encoded when. Finds messages that nobody takes, contributions that are lost or come
// twice, and ranks that end with different expressions, and so with different bits.
#pragma once

#include "comm/collectives/schedule.h"

#include <cstddef>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace tersor::testing {

/// An expression is its index among all that were met: equal ones are one.
using Expression = std::size_t;

class Expressions {
 public:
  Expression gradient(int rank) { return find({kGradient, {static_cast<std::size_t>(rank)}}); }
  Expression encoded(Expression value) { return find({kEncoded, {value}}); }
  Expression bare(Expression value) { return find({kBare, {value}}); }
  /// Added in this order; one alone is itself.
  Expression sum(const std::vector<Expression>& values);

  /// How often the gradient of each rank is in it; and how often the one that was encoded most was.
  std::map<int, int> contributions(Expression value) const;
  int encodings(Expression value) const;
  /// The same for equal ones of several walks.
  std::string text(Expression value) const;

 private:
  enum Kind { kGradient, kEncoded, kBare, kSum };
  struct Node {
    Kind kind;
    std::vector<std::size_t> of;
    auto operator<=>(const Node&) const = default;
  };
  Expression find(Node node);

  std::map<Node, Expression> known_;
  std::vector<Node> nodes_;
};

/// What a collective's lanes hold, in parts of the gradient that are never cut further.
struct Layout {
  std::vector<Schedule> schedules;                           ///< of each rank
  std::vector<std::vector<std::vector<std::size_t>>> parts;  ///< [rank][lane]: its parts
  std::set<std::size_t> bare_lanes = {};                     ///< that travel as they are, in a host
  std::size_t part_count = 0;
  std::vector<int> hosts = {};  ///< of each rank; empty: none share one
};

Layout flat_layout(const std::function<Schedule(const Party&)>& way, int ranks, std::size_t lanes);
Layout grid_layout(const Grid& grid);
Layout hierarchical_layout(const std::vector<int>& hosts, Exchange between);
/// A part a rank, of hosts of equally many ranks; and on a grid.
Layout hierarchical_scatter_layout(const std::vector<int>& hosts);
Layout hierarchical_gather_layout(const std::vector<int>& hosts);
Layout owned_layout(const std::function<Schedule(const Party&)>& way,
                    const std::vector<Party>& parties);

/// How many messages a rank sends in an allreduce on a grid: to the owners of each dimension, and
/// its own sums back; one that owns nothing sends all that it has, and no more.
std::size_t messages_of(const Grid& grid, int rank);

/// What a rank sent to others.
struct Sent {
  std::size_t messages = 0;
  double encoded = 0;  ///< gradients
  double bare = 0;
  double abroad = 0;  ///< of both, to other hosts
};

class ScheduleWalk {
 public:
  /// values[rank][part] of the start: every rank's gradient.
  explicit ScheduleWalk(const Layout& layout);

  /// What is wrong, in a sentence; empty: nothing.
  std::string run();

  Expression value(int rank, std::size_t part) const { return values_[size(rank)][part]; }
  const Sent& sent(int rank) const { return sent_[size(rank)]; }
  Expressions& expressions() { return expressions_; }

 private:
  /// What travels of one lane.
  struct Content {
    std::size_t lane;
    int from;
    std::vector<Expression> values;
  };
  using Message = std::vector<Content>;

  static std::size_t size(int rank) { return static_cast<std::size_t>(rank); }
  int ranks() const { return static_cast<int>(layout_.schedules.size()); }
  const Step& step(int rank) const { return layout_.schedules[size(rank)][step_]; }
  const std::vector<std::size_t>& parts(int rank, std::size_t lane) const {
    return layout_.parts[size(rank)][lane];
  }
  std::string fault(int rank, const std::string& what) const;
  std::vector<Expression> made(int rank, std::size_t lane);
  std::string deliver(int rank);
  std::string open(int rank, const Parcel& parcel, Message message);
  void take(int rank);
  void add_bare();
  void count(int rank, const Parcel& parcel);

  const Layout& layout_;
  Expressions expressions_;
  std::size_t step_ = 0;
  std::vector<std::vector<Expression>> values_;
  std::vector<std::map<int, Message>> outbox_;  ///< [to][from]
  std::vector<Message> inbox_, kept_;
  std::vector<Sent> sent_;
};

}  // namespace tersor::testing
