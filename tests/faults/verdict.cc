// Implements `judge` of verdict.h.
#include "tests/faults/verdict.h"

#include <algorithm>

#include "tests/support/specs.h"

namespace tersor::faults {
namespace {

class Judge {
 public:
  Judge(const Scenario& scenario, int rank, const RankReport& report, Ends ends)
      : scenario_(scenario), rank_(rank), report_(report), ends_(ends) {}

  void check_survival() {
    for (const std::string& complaint : report_.complaints) complain(complaint);
  }
  void check_results(const std::vector<std::uint64_t>& sound);
  void check_ending();
  void check_message();
  void check_time(Clock::time_point fault_at);
  void check_later();

  std::vector<std::string> take() { return std::move(complaints_); }

 private:
  const Fault& fault() const { return scenario_.fault; }
  bool failed_rank() const { return rank_ == fault().rank; }
  /// True if this rank made a mistaken call in this step.
  bool mistaken(std::size_t step) const {
    return failed_rank() && step == fault().step && is_mistake(fault().kind);
  }
  /// True if frames contain row counts, so a receiver may detect the mismatch in a frame.
  bool rows_differ() const {
    return fault().kind == FaultKind::kDisagree &&
           scenario_.steps[fault().step].work == Work::kAllToAll;
  }
  std::string failed_rank_name() const { return "rank " + std::to_string(fault().rank); }
  std::vector<Ending> endings() const;
  /// The message must contain at least one of these texts.
  std::vector<std::string> causes() const;
  std::vector<std::string> departures(std::string words) const;
  std::vector<std::string> silences() const;
  bool says(const std::string& words) const {
    return report_.message.find(words) != std::string::npos;
  }
  bool says_operation() const;
  bool passed() const;
  bool may_name_another() const;
  bool within_rounds() const;
  std::string late() const {
    return " within " + std::to_string(scenario_.timeout.count()) + " ms";
  }
  void complain(const std::string& what);

  const Scenario& scenario_;
  int rank_;
  const RankReport& report_;
  const Ends ends_;
  std::vector<std::string> complaints_;
};

void Judge::complain(const std::string& what) {
  complaints_.push_back("rank " + std::to_string(rank_) + " " + what + "; it ended with " +
                        std::string(ending_name(report_.ending)) + " \"" + report_.message +
                        "\" after " + std::to_string(report_.digests.size()) + " steps");
}

void Judge::check_results(const std::vector<std::uint64_t>& sound) {
  for (std::size_t step = 0; step < report_.digests.size(); ++step)
    if (!mistaken(step) && report_.digests[step] != sound[step])
      complain("had a wrong result of step " + std::to_string(step));
}

std::vector<Ending> Judge::endings() const {
  if (rows_differ()) return {Ending::kTransportError, Ending::kWireError};
  if (!failed_rank()) {
    if (fault().kind == FaultKind::kDamage) return {Ending::kTransportError, Ending::kWireError};
    return {Ending::kTransportError};
  }
  if (fault().kind == FaultKind::kThrow) return {Ending::kOther};
  if (fault().kind == FaultKind::kRefused) return {Ending::kInvalidArgument};
  if (fault().kind == FaultKind::kLeave) return {Ending::kLeft};
  // A rank waking up may still receive messages sent before the other ranks gave up.
  if (fault().kind == FaultKind::kStop) return {Ending::kTransportError, Ending::kCompleted};
  return {Ending::kTransportError};
}

void Judge::check_ending() {
  const auto allowed = endings();
  if (std::find(allowed.begin(), allowed.end(), report_.ending) == allowed.end())
    complain("should have ended with " + std::string(ending_name(allowed.front())));
}

// A timeout follows waiting ranks within a single operation only. After a `pass` or a `send`, ranks
// may be in different operations, so a rank waiting in another operation may be named, too. A rank
// failing inside a step may already have completed the step's operations. Then the rank is missed
// in the next step.
bool Judge::passed() const {
  const std::size_t missed_in = fault().step + (fault().operation ? 1 : 0);
  const std::size_t count = std::min(missed_in + 1, scenario_.steps.size());
  const auto first = scenario_.steps.begin();
  return std::any_of(first, first + static_cast<std::ptrdiff_t>(count), [](const Step& step) {
    return step.work == Work::kPass || step.work == Work::kSend;
  });
}

bool Judge::may_name_another() const {
  if (!is_silent(fault().kind)) return false;
  if (fault().kind == FaultKind::kSkip) return true;  // two waiting ranks; either may be named
  return within_rounds() || (fault().kind != FaultKind::kKill && passed());
}

// A native codec executes several operations per call. If some ranks are already in the next
// operation, the error may name only the rank these ranks wait for.
bool Judge::within_rounds() const {
  const Step& step = scenario_.steps[fault().step];
  const std::string& codec = step.work == Work::kReducerStep ? scenario_.trainer.codec : step.codec;
  return !is_raw(step.work) && !test::offers(codec, Exchange::kGather);
}

// The reducer may be destroyed before the exception reaches the code poisoning the transport.
std::vector<std::string> Judge::causes() const {
  const std::string who = failed_rank_name();
  switch (fault().kind) {
    case FaultKind::kThrow:
      return departures(who + " gave up: " + std::string(kThrownText));
    case FaultKind::kRefused:
      return departures(who + " gave up: ");
    case FaultKind::kLeave:
      return departures(who + " left");
    case FaultKind::kDisagree:
      return {" calls ", " sends ", " sent "};
    case FaultKind::kOtherRoot:
      return {" with other arguments"};
    case FaultKind::kDamage:
      return {"frame of " + who, "the row counts of " + who};
    default:
      return silences();
  }
}

// TCP does not detect the end of a process before the connection is made.
std::vector<std::string> Judge::departures(std::string words) const {
  std::vector<std::string> all = {std::move(words), failed_rank_name() + " left"};
  if (ends_ == Ends::kHeard)
    all.push_back("the connection to " + failed_rank_name() + " broke: it cannot be reached");
  return all;
}

// TCP detects the end of a process, but not a suspended process.
std::vector<std::string> Judge::silences() const {
  const std::string who = failed_rank_name();
  std::vector<std::string> all = {"no message from " + (may_name_another() ? "" : who + late())};
  if (fault().kind == FaultKind::kKill && ends_ == Ends::kHeard)
    all.push_back("the connection to " + who + " broke");
  return all;
}

// The named operation may be this rank's operation, or another rank's earlier or later operation.
bool Judge::says_operation() const {
  const auto from = scenario_.steps.begin() +
                    static_cast<std::ptrdiff_t>(std::min(report_.digests.size(), fault().step));
  return says("channel") ||  // while constructing a reducer
         std::any_of(from, scenario_.steps.end(), [this](const Step& step) {
           return says(std::string(work_name(step.work))) ||
                  (step.work == Work::kSend && says("receive"));
         });
}

void Judge::check_message() {
  if (!says_operation()) complain("does not name the operation");
  if (!says(failed_rank_name()) && !may_name_another())
    complain("does not name " + failed_rank_name());
  const auto wanted = causes();
  if (std::none_of(wanted.begin(), wanted.end(), [&](const auto& cause) { return says(cause); }))
    complain("does not say \"" + wanted.front() + "\"");
}

void Judge::check_time(Clock::time_point fault_at) {
  auto limit = std::max(report_.begun, fault_at) + kTolerance;
  if (is_silent(fault().kind)) limit += scenario_.timeout;
  if (report_.ended > limit) complain("was told too late");
}

void Judge::check_later() {
  if (report_.later.find("the transport was aborted") == std::string::npos)
    complain("was not told of the poison by one more call: \"" + report_.later + "\"");
  if (report_.later_seconds > std::chrono::duration<double>(kTolerance).count())
    complain("was told of the poison too late");
}

}  // namespace

std::vector<std::string> judge(const Scenario& scenario, int rank, const RankReport& report,
                               const std::vector<std::uint64_t>& sound, Clock::time_point fault_at,
                               Ends ends) {
  Judge judge(scenario, rank, report, ends);
  judge.check_survival();
  judge.check_results(sound);
  judge.check_ending();
  if (report.ending == Ending::kLeft) return judge.take();
  judge.check_later();
  if (report.ending == Ending::kCompleted) return judge.take();
  if (rank != scenario.fault.rank) judge.check_message();
  judge.check_time(fault_at);
  return judge.take();
}

}  // namespace tersor::faults
