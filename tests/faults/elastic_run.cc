// Implements elastic_run.h.
#include "tests/faults/elastic_run.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string_view>

#include "tests/faults/faulty_transport.h"
#include "tests/faults/survivors.h"

namespace tersor::faults {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::milliseconds kLongTimeout{60'000};
constexpr std::chrono::milliseconds kShortTimeout{3'000};  // for faults detected at a deadline
constexpr float kRate = 0.1f;

std::shared_ptr<Transport> borrowed(Transport& transport) {
  return {std::shared_ptr<void>(), &transport};
}

/// A value in [-1, 1), equal on every machine.
float gradient_of(int rank, int step, std::size_t parameter, std::size_t i) {
  std::uint64_t x = static_cast<std::uint64_t>(rank) * 0x9e3779b97f4a7c15u +
                    static_cast<std::uint64_t>(step) * 0xbf58476d1ce4e5b9u +
                    parameter * 0x94d049bb133111ebu + i;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return static_cast<float>(static_cast<double>(x >> 40) / (1 << 23) - 1.0);
}

class Training {
 public:
  Training(const ElasticPlan& plan, Transport& transport)
      : plan_(plan), rank_(transport.rank()), members_(static_cast<std::size_t>(plan.ranks)) {
    std::iota(members_.begin(), members_.end(), 0);
    for (const std::size_t count : plan.counts) {
      gradients_.emplace_back(count);
      weights_.emplace_back(count);
    }
    reducer_ =
        std::make_unique<GradientReducer>(transport, ReducerOptions{.codec = plan.codec,
                                                                    .algorithm = plan.algorithm,
                                                                    .chunk_count = 3'000,
                                                                    .progress = plan.progress,
                                                                    .elastic = Elastic::kOn,
                                                                    .weighted = plan.weighted,
                                                                    .timeout = plan.timeout});
    for (std::size_t i = 0; i < gradients_.size(); ++i)
      reducer_->add("parameter " + std::to_string(i), gradients_[i]);
  }

  void run(ElasticReport& report) {
    for (int step = 0; step < plan_.steps;) try {
        reduce(step);
        update();
        report.members.push_back(members_);
        ++step;
      } catch (const RanksLostError& lost) {
        go_on_after(lost, step, report);
      }
    report.weights = digest();
    stay_for_the_others();
  }

 private:
  void reduce(int step) {
    if (plan_.weighted == Weighted::kOn) reducer_->weigh((rank_ + step) % plan_.ranks + 0.5);
    for (std::size_t p = 0; p < gradients_.size(); ++p) {
      for (std::size_t i = 0; i < gradients_[p].size(); ++i)
        gradients_[p][i] = gradient_of(rank_, step, p, i);
      reducer_->ready("parameter " + std::to_string(p));
    }
    reducer_->wait();
  }

  // A rank must not leave after the last step before every rank has completed the step. The start
  // of another step proves completion.
  void stay_for_the_others() try { reduce(plan_.steps); } catch (const TransportError&) {
  }

  void update() {
    for (std::size_t p = 0; p < gradients_.size(); ++p)
      for (std::size_t i = 0; i < gradients_[p].size(); ++i)
        weights_[p][i] -= kRate * gradients_[p][i];
  }

  void go_on_after(const RanksLostError& lost, int step, ElasticReport& report) {
    note(lost, step, report);
    for (bool again = true; again;) try {
        reducer_->resume();
        again = false;
      } catch (const RanksLostError& more) {
        note(more, step, report);
      }
  }

  void note(const RanksLostError& lost, int step, ElasticReport& report) {
    if (lost.last_step() != static_cast<std::uint32_t>(step))
      report.complaints.push_back("after " + std::to_string(step) + " steps it is told that " +
                                  std::to_string(lost.last_step()) + " stand");
    const bool may_be_equal = std::string_view(lost.what()).starts_with("a rank was late");
    if (!std::ranges::includes(members_, lost.members()) ||
        (lost.members() == members_ && !may_be_equal))
      report.complaints.push_back("the members are no part of those of before");
    members_ = lost.members();
  }

  std::uint64_t digest() const {
    Values all;
    for (const Values& one : weights_) all.insert(all.end(), one.begin(), one.end());
    return digest_of(all);
  }

  const ElasticPlan& plan_;
  const int rank_;
  std::vector<int> members_;
  std::vector<Values> gradients_, weights_;
  std::unique_ptr<GradientReducer> reducer_;
};

void strike(const Victim& victim, const Doom& doom) {
  switch (victim.kind) {
    case FaultKind::kThrow:
      throw std::runtime_error(std::string(kThrownText));
    case FaultKind::kStop:
      return doom.stall();
    case FaultKind::kKill:
      return doom.kill();
    default:
      return doom.suspend();
  }
}

std::string text_of(const std::vector<int>& members) {
  std::string text;
  for (const int member : members) text += std::to_string(member) + " ";
  return text;
}

bool is_whole(const ElasticReport& report) {
  return report.ending == ElasticReport::Ending::kTrained;
}

}  // namespace

const Victim* ElasticPlan::victim(int rank) const {
  const auto found = std::ranges::find(victims, rank, &Victim::rank);
  return found == victims.end() ? nullptr : &*found;
}

std::string ElasticPlan::text() const {
  std::ostringstream text;
  text << "seed " << seed << ": " << ranks << " ranks, " << steps << " steps of " << counts.size()
       << " parameters by " << codec << ", " << algorithm_name(algorithm)
       << (progress == ProgressBy::kCaller ? ", driven by the caller" : "")
       << (weighted == Weighted::kOn ? ", weighed" : "");
  for (const Victim& one : victims)
    text << "; rank " << one.rank << ": " << fault_name(one.kind) << " at operation "
         << one.operations << (one.in_recovery ? " of the recovery" : "");
  return text.str();
}

ElasticPlan draw_elastic_plan(std::uint64_t seed, Home home) {
  std::mt19937_64 generator(seed + 77);
  const auto below = [&](std::size_t limit) {
    return static_cast<std::size_t>(generator() % limit);
  };
  constexpr const char* kCodecs[] = {"none",
                                     "bf16",
                                     "int8+ef",
                                     "int4+ef",
                                     "intsum",
                                     "topk:density=0.1+ef",
                                     "hadamard:bits=1+ef",
                                     "lowrank:rank=2+ef"};
  constexpr Algorithm kAlgorithms[] = {Algorithm::kAuto, Algorithm::kOneShot, Algorithm::kTwoShot};
  ElasticPlan plan{.seed = seed};
  plan.ranks = 2 + static_cast<int>(below(5));
  plan.steps = 2 + static_cast<int>(below(6));
  plan.codec = kCodecs[below(std::size(kCodecs))];
  plan.algorithm = plan.codec.starts_with("lowrank") ? Algorithm::kAuto : kAlgorithms[below(3)];
  plan.progress = below(4) == 0 ? ProgressBy::kCaller : ProgressBy::kThread;
  for (std::size_t i = 1 + below(4); i > 0; --i) plan.counts.push_back(1 + below(9'000));
  const bool is_silent = below(10) == 0;
  plan.timeout = is_silent ? kShortTimeout : kLongTimeout;
  const bool are_two = plan.ranks > 2 && below(3) == 0;
  for (int i = 0; i < (are_two ? 2 : 1); ++i) {
    Victim one{.rank = static_cast<int>(below(static_cast<std::size_t>(plan.ranks)))};
    if (home == Home::kThreads)
      one.kind = is_silent ? FaultKind::kStop : FaultKind::kThrow;
    else
      one.kind = is_silent ? FaultKind::kSuspend : FaultKind::kKill;
    one.operations = 1 + static_cast<unsigned>(below(40));
    one.in_recovery = i == 1 && below(2) == 0;
    if (one.in_recovery) one.operations = 1 + one.operations % 12;
    if (plan.victim(one.rank) == nullptr) plan.victims.push_back(one);
  }
  if (below(3) == 0) plan.weighted = Weighted::kOn;
  return plan;
}

std::vector<std::string> ElasticReport::lines() const {
  std::vector<std::string> lines = {std::to_string(static_cast<int>(ending)),
                                    std::to_string(weights), message};
  lines.push_back(std::to_string(members.size()));
  for (const auto& of_step : members) lines.push_back(text_of(of_step));
  lines.insert(lines.end(), complaints.begin(), complaints.end());
  return lines;
}

ElasticReport ElasticReport::of(const std::vector<std::string>& lines) {
  ElasticReport report;
  report.ending = static_cast<Ending>(std::stoi(lines.at(0)));
  report.weights = std::stoull(lines.at(1));
  report.message = lines.at(2);
  const std::size_t steps = std::stoul(lines.at(3));
  for (std::size_t step = 0; step < steps; ++step) {
    std::istringstream text(lines.at(4 + step));
    report.members.emplace_back();
    for (int member = 0; text >> member;) report.members.back().push_back(member);
  }
  report.complaints.assign(lines.begin() + 4 + static_cast<std::ptrdiff_t>(steps), lines.end());
  return report;
}

ElasticReport run_elastic(const ElasticPlan& plan, Transport& transport, const Doom& doom) {
  ElasticReport report;
  const auto trap = std::make_shared<Trap>();
  FaultyTransport faulty(borrowed(transport), trap);
  if (const Victim* victim = plan.victim(transport.rank()))
    (victim->in_recovery
         ? trap->set_in_recovery(victim->operations, [&, victim] { strike(*victim, doom); })
         : trap->set(victim->operations, [&, victim] { strike(*victim, doom); }));
  try {
    Training training(plan, faulty);
    const auto meeting = isolated_channel_of(transport);
    training.run(report);
    report.ending = ElasticReport::Ending::kTrained;
  } catch (const InvalidArgumentError& error) {
    report.ending = ElasticReport::Ending::kTooFew;
    report.message = error.what();
  } catch (const std::exception& error) {
    report.message = error.what();
  }
  std::ranges::replace(report.message, '\n', ' ');
  return report;
}

namespace {

/// Checks the ranks with complete training: all must agree on members and weights.
class Verdict {
 public:
  Verdict(const ElasticPlan& plan, const std::vector<std::optional<ElasticReport>>& reports)
      : plan_(plan), reports_(reports) {}

  std::vector<std::string> find() {
    for (int rank = 0; rank < plan_.ranks; ++rank) check(rank);
    return std::move(complaints_);
  }

 private:
  void complain(int rank, const std::string& what) {
    complaints_.push_back("rank " + std::to_string(rank) + " " + what);
  }
  void check(int rank) {
    const auto& report = reports_[static_cast<std::size_t>(rank)];
    if (!report.has_value()) {
      if (plan_.victim(rank) == nullptr) complain(rank, "never told how it ended");
      return;
    }
    for (const std::string& complaint : report->complaints) complain(rank, complaint);
    if (is_whole(*report)) return check_whole(rank, *report);
    if (plan_.victim(rank) != nullptr) return;
    if (may_be_too_few() && report->ending == ElasticReport::Ending::kTooFew) return;
    complain(rank, "did not train to the end: " + report->message);
  }
  // A victim may have finished before its fault.
  void check_whole(int rank, const ElasticReport& report) {
    if (first_ == nullptr) {
      first_ = &report;
      check_members(rank, report);
    }
    if (report.weights != first_->weights) complain(rank, "has other weights than the others");
    if (report.members != first_->members) complain(rank, "had other members in some step");
  }
  void check_members(int rank, const ElasticReport& report) {
    for (int other = 0; other < plan_.ranks; ++other) {
      const auto& told = reports_[static_cast<std::size_t>(other)];
      const bool is_member = std::ranges::count(report.members.back(), other) != 0;
      if (told.has_value() && is_whole(*told) != is_member && plan_.victim(other) == nullptr)
        complain(other, std::string("is ") + (is_member ? "a" : "no") + " member to rank " +
                            std::to_string(rank));
    }
  }
  // True if the victims are at least half of the ranks.
  bool may_be_too_few() const { return 2 * static_cast<int>(plan_.victims.size()) >= plan_.ranks; }

  const ElasticPlan& plan_;
  const std::vector<std::optional<ElasticReport>>& reports_;
  const ElasticReport* first_ = nullptr;
  std::vector<std::string> complaints_;
};

}  // namespace

std::vector<std::string> judge(const ElasticPlan& plan,
                               const std::vector<std::optional<ElasticReport>>& reports) {
  return Verdict(plan, reports).find();
}

}  // namespace tersor::faults
