// Implements loose_run.h.
#include "tests/faults/loose_run.h"

#include <tersor/error.h>
#include <tersor/gossip.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <random>
#include <thread>

namespace tersor::faults {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::milliseconds kTimeout = 60s;  // longer than any sound run
constexpr int kGossipSteps = 100;
constexpr double kRounding = 0.4;  // of counts, for every codec

struct LeavesNow {};  // thrown by a victim running as a thread

using Parameters = std::vector<Values>;

// Integers of a single generator, so a seed means the same everywhere.
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : generator_(seed) {}
  int below(int limit) {
    return static_cast<int>(generator_() % static_cast<std::uint64_t>(limit));
  }
  template <typename T, std::size_t count>
  T pick(const T (&choices)[count]) {
    return choices[below(static_cast<int>(count))];
  }

 private:
  std::mt19937_64 generator_;
};

template <typename Span>
std::vector<Span> views(Parameters& parameters) {
  return {parameters.begin(), parameters.end()};
}

void die(const Doom& doom) {
  if (doom.kill) doom.kill();
  throw LeavesNow();
}

// A rank with a parameter server. Parameter i contains the negated number of pushes of rank i.
class Served {
 public:
  Served(const ServedPlan& plan, Transport& transport, const Doom& doom)
      : plan_(plan),
        doom_(doom),
        rank_(transport.rank()),
        dice_(plan.seed * 64 + static_cast<std::uint64_t>(rank_)),
        weights_(static_cast<std::size_t>(plan.ranks), Values(plan.count)),
        least_(weights_.size(), 0) {
    for (int server = 0; server < plan.servers; ++server)
      isolated_channels_.push_back(transport.isolated_channel());
    if (rank_ < plan.servers)
      shard_ = std::make_unique<ParameterShard>(views<ConstValueSpan>(weights_), sgd_update(1.0f),
                                                plan.options, rank_, plan.servers);
  }

  LooseReport run() {
    {
      std::jthread serving;
      if (shard_ != nullptr) serving = std::jthread([this] { serve_all(); });
      if (rank_ >= plan_.first_worker) work();
    }
    if (shard_ != nullptr) check_shard();
    return report_;
  }

 private:
  void complain(const std::string& what) { report_.complaints.push_back(what); }

  void serve_all() try {
    serve(*isolated_channels_[static_cast<std::size_t>(rank_)], *shard_, kTimeout);
  } catch (const std::exception& error) {
    complain("its server ended: " + std::string(error.what()));
  }

  void work() {
    std::vector<ServerAt> at;
    for (int server = 0; server < plan_.servers; ++server)
      at.push_back({isolated_channels_[static_cast<std::size_t>(server)].get(), server,
                    server == rank_ ? shard_.get() : nullptr});
    const std::vector<std::size_t> counts(weights_.size(), plan_.count);
    ParameterClient client(at, counts, plan_.options, kTimeout);
    for (int clock = 0; clock < plan_.clocks; ++clock) {
      before_call();
      client.pull(views<ValueSpan>(weights_));
      check_counts(clock);
      before_call();
      Parameters gradient(weights_.size(), Values(plan_.count));
      std::ranges::fill(gradient[static_cast<std::size_t>(rank_)], 1.0f);
      client.push(views<ConstValueSpan>(gradient));
    }
    client.leave();
  }

  void before_call() {
    if (plan_.victim == rank_ && calls_++ == plan_.calls) die(doom_);
    if (dice_.below(4) == 0) std::this_thread::sleep_for(dice_.below(3) * 1ms);
  }

  void check_counts(int clock) {
    for (int worker = plan_.first_worker; worker < plan_.ranks; ++worker) {
      const auto at = static_cast<std::size_t>(worker);
      const auto [lowest, highest] = std::ranges::minmax(weights_[at]);
      const double most = -lowest, least = -highest;
      if (least < least_[at] - kRounding || least < floor_of(worker, clock) - kRounding ||
          most > ceiling_of(worker, clock) + kRounding)
        complain("at clock " + std::to_string(clock) + " there are from " + std::to_string(least) +
                 " to " + std::to_string(most) + " pushes of worker " + std::to_string(worker));
      least_[at] = std::round(least);
    }
  }

  // Minimum and maximum number of another worker's pushes when this worker is at `clock`.
  double floor_of(int worker, int clock) const {
    if (worker == rank_) return clock;
    if (plan_.victim == worker || plan_.options.staleness == kNoBound) return 0;
    return clock - static_cast<double>(plan_.options.staleness);
  }
  double ceiling_of(int worker, int clock) const {
    const double staleness = plan_.options.staleness;
    if (worker == rank_ || staleness == 0) return clock;
    return std::min<double>(plan_.clocks, clock + staleness + 1);
  }

  void check_shard() {
    const ServerStatistics seen = shard_->statistics();
    const auto wanted = plan_.victim ? std::vector<int>{*plan_.victim} : std::vector<int>{};
    if (seen.lost != wanted) complain("its server names others as lost");
    if (seen.refused != 0) complain("its server refused something");
    for (int worker = plan_.first_worker; worker < plan_.ranks; ++worker)
      for (const float one : shard_->weights(static_cast<std::size_t>(worker)))
        if (worker == plan_.victim ? -one > (plan_.calls + 1) / 2 + kRounding || -one < -kRounding
                                   : std::abs(-one - plan_.clocks) > kRounding) {
          complain("in the end its server has " + std::to_string(-one) + " pushes of worker " +
                   std::to_string(worker));
          return;
        }
  }

  const ServedPlan& plan_;
  const Doom& doom_;
  int rank_;
  Dice dice_;
  Parameters weights_;
  std::vector<double> least_;  // last seen pushes of each worker
  std::vector<std::unique_ptr<Transport>> isolated_channels_;
  std::unique_ptr<ParameterShard> shard_;
  LooseReport report_;
  int calls_ = 0;
};

float gossip_value(const GossipPlan& plan, int rank) {
  return static_cast<float>(Dice(plan.seed * 64 + static_cast<std::uint64_t>(rank)).below(2'001)) /
             1000.0f -
         1.0f;
}

std::vector<int> neighbours_of(const GossipPlan& plan, int rank) {
  std::vector<int> all;
  const Topology topology = Topology::named(plan.topology, plan.ranks);
  for (const Edge& edge : topology.edges(rank)) all.push_back(edge.rank);
  return all;
}

void mix_all(const GossipPlan& plan, Transport& transport, const Doom& doom, LooseReport& report) {
  const int rank = transport.rank();
  Values weights(plan.count, gossip_value(plan, rank));
  Gossip gossip(transport, Topology::named(plan.topology, plan.ranks),
                {.codec = plan.codec, .timeout = kTimeout, .on_split = OnSplit::kContinue});
  gossip.add("weights", weights);
  for (int step = 0; step < kGossipSteps; ++step) {
    if (plan.victim == rank && step == plan.steps_of_victim) die(doom);
    gossip.mix();
  }
  report.value = weights.front();
  for (const float one : weights)
    if (std::abs(one - report.value) > 0.05) report.complaints.push_back("its weights differ");
  std::vector<int> wanted;
  if (plan.victim && std::ranges::count(neighbours_of(plan, rank), *plan.victim) > 0)
    wanted.push_back(*plan.victim);
  if (gossip.statistics().lost != wanted) report.complaints.push_back("it names others as lost");
  if (plan.ranks > 2) wanted.clear();  // these graphs stay connected without one rank
  if (gossip.statistics().cut_off != wanted) report.complaints.push_back("it is cut off");
}

template <typename Work>
LooseReport reported(LooseReport& report, const Work& work) {
  try {
    work();
  } catch (const LeavesNow&) {
  } catch (const std::exception& error) {
    report.complaints.push_back("ended: " + std::string(error.what()));
  }
  return report;
}

std::vector<std::string> complaints_of_all(const std::optional<int>& victim,
                                           const std::vector<std::optional<LooseReport>>& reports) {
  std::vector<std::string> all;
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    if (victim == static_cast<int>(rank)) continue;
    const std::string name = "rank " + std::to_string(rank) + ": ";
    if (!reports[rank]) all.push_back(name + "never reported");
    for (const std::string& one : reports[rank].value_or(LooseReport{}).complaints)
      all.push_back(name + one);
  }
  return all;
}

// The remaining ranks still connected to `rank`.
std::vector<int> component_without_victim(const GossipPlan& plan, int rank) {
  std::vector<int> found = {rank};
  for (std::size_t next = 0; next < found.size(); ++next)
    for (const int other : neighbours_of(plan, found[next]))
      if (other != plan.victim && std::ranges::count(found, other) == 0) found.push_back(other);
  return found;
}

}  // namespace

std::vector<std::string> LooseReport::lines() const {
  std::vector<std::string> all = {std::to_string(value)};
  all.insert(all.end(), complaints.begin(), complaints.end());
  return all;
}

LooseReport LooseReport::of(const std::vector<std::string>& lines) {
  if (lines.empty()) return {.complaints = {"told nothing"}};
  return {.complaints = {lines.begin() + 1, lines.end()}, .value = std::stod(lines.front())};
}

std::string ServedPlan::text() const {
  std::string text = std::to_string(servers) + " servers, workers " + std::to_string(first_worker) +
                     " to " + std::to_string(ranks - 1) + ", " + std::to_string(clocks) +
                     " clocks, " + std::to_string(count) + " values, push " + options.push +
                     ", pull " + options.pull + ", staleness " + std::to_string(options.staleness);
  if (victim)
    text += ", worker " + std::to_string(*victim) + " is lost after " + std::to_string(calls) +
            " calls";
  return text;
}

std::string GossipPlan::text() const {
  std::string text = topology + " of " + std::to_string(ranks) + " ranks, " + codec + ", " +
                     std::to_string(count) + " values";
  if (victim)
    text += ", rank " + std::to_string(*victim) + " is lost after " +
            std::to_string(steps_of_victim) + " steps";
  return text;
}

ServedPlan draw_served_plan(std::uint64_t seed) {
  Dice dice(seed);
  ServedPlan plan{.seed = seed};
  plan.servers = 1 + dice.below(2);
  plan.first_worker = dice.below(plan.servers + 1);
  plan.ranks = plan.servers + 1 + dice.below(4);
  plan.clocks = 1 + dice.below(8);
  plan.count = static_cast<std::size_t>(1) << dice.below(12);
  plan.options = {.push = dice.pick({"none", "int8", "int8+ef", "int4", "bf16"}),
                  .pull = dice.pick({"none", "int8", "bf16"}),
                  .staleness = dice.pick({0u, 1u, 3u, kNoBound}),
                  .reduction = Reduction::kSum};
  for (int rank = plan.first_worker; rank < plan.ranks; ++rank)
    plan.options.workers.push_back(rank);
  if (dice.below(3) != 0) {
    plan.victim = plan.servers + dice.below(plan.ranks - plan.servers);
    plan.calls = dice.below(2 * plan.clocks);
  }
  return plan;
}

GossipPlan draw_gossip_plan(std::uint64_t seed) {
  Dice dice(seed);
  GossipPlan plan{.seed = seed};
  plan.ranks = 2 + dice.below(5);
  plan.topology = dice.pick({"ring", "torus", "exponential"});
  plan.codec = dice.pick({"none", "int8", "int4", "bf16"});
  plan.count = static_cast<std::size_t>(1) << dice.below(12);
  if (dice.below(2) != 0) {
    plan.victim = dice.below(plan.ranks);
    // All ranks have then agreed on the mixed parameters.
    plan.steps_of_victim = plan.ranks + dice.below(kGossipSteps / 4);
  }
  return plan;
}

LooseReport run_loosely(const ServedPlan& plan, Transport& transport, const Doom& doom) {
  LooseReport report;
  return reported(report, [&] { report = Served(plan, transport, doom).run(); });
}

LooseReport run_loosely(const GossipPlan& plan, Transport& transport, const Doom& doom) {
  LooseReport report;
  return reported(report, [&] { mix_all(plan, transport, doom, report); });
}

std::vector<std::string> judge(const ServedPlan& plan,
                               const std::vector<std::optional<LooseReport>>& reports) {
  return complaints_of_all(plan.victim, reports);
}

// Without a loss, the mean is invariant. After a loss, all connected ranks still agree on a value
// within the range of the initial values.
std::vector<std::string> judge(const GossipPlan& plan,
                               const std::vector<std::optional<LooseReport>>& reports) {
  std::vector<std::string> all = complaints_of_all(plan.victim, reports);
  if (!all.empty()) return all;
  std::vector<double> before;
  for (int rank = 0; rank < plan.ranks; ++rank) before.push_back(gossip_value(plan, rank));
  const auto [lowest, highest] = std::ranges::minmax(before);
  double mean = 0;
  for (const double one : before) mean += one / plan.ranks;
  for (int rank = 0; rank < plan.ranks; ++rank) {
    if (rank == plan.victim) continue;
    const double value = reports[static_cast<std::size_t>(rank)]->value;
    bool agrees =
        plan.victim ? value > lowest - 0.1 && value < highest + 0.1 : std::abs(value - mean) < 0.02;
    for (const int other : component_without_victim(plan, rank))
      agrees &= std::abs(value - reports[static_cast<std::size_t>(other)]->value) < 0.05;
    if (!agrees)
      all.push_back("rank " + std::to_string(rank) + " ends at " + std::to_string(value) +
                    ", the mean was " + std::to_string(mean));
  }
  return all;
}

}  // namespace tersor::faults
