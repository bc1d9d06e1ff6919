// Text output of scenarios. See draw.cc for the random choices.
#include "tests/faults/scenario.h"

#include <array>
#include <numeric>

namespace tersor::faults {
namespace {

constexpr std::array<std::string_view, 16> kWorkNames = {
    "allreduce", "reduce_scatter", "allgather", "broadcast",       "reduce",   "gather",
    "scatter",   "all_to_all",     "send",      "all_gather",      "exchange", "sum",
    "maximum",   "barrier",        "pass",      "gradient reducer"};
constexpr std::array<std::string_view, 11> kFaultNames = {
    "no fault", "throws", "is refused", "leaves",    "disagrees",   "names another root",
    "stops",    "skips",  "damage",     "is killed", "is suspended"};

template <typename Number>
std::string list_text(const std::vector<Number>& numbers) {
  std::string text;
  for (const Number number : numbers) text += (text.empty() ? "" : ",") + std::to_string(number);
  return text;
}

std::string step_text(const Step& step) {
  std::string text(work_name(step.work));
  if (step.work == Work::kBarrier || step.work == Work::kReducerStep) return text;
  text += " of " + std::to_string(step.count) + " " + std::string(dtype_name(step.dtype));
  if (is_raw(step.work)) return text;
  text += " by " + step.codec + " " + std::string(algorithm_name(step.algorithm));
  if (is_rooted(step.work)) text += " of " + std::to_string(step.root);
  for (const int digit : step.dims) text += " x " + std::to_string(digit);
  if (!step.hosts.empty()) text += " on hosts " + list_text(step.hosts);
  for (const auto& sent : step.rows) text += " rows " + list_text(sent);
  return text;
}

std::string fault_text(const Fault& fault) {
  std::string text =
      "rank " + std::to_string(fault.rank) + " " + std::string(fault_name(fault.kind)) + " ";
  text +=
      fault.operation ? "after " + std::to_string(*fault.operation) + " operations of" : "before";
  return text + " step " + std::to_string(fault.step) + ", choice " + std::to_string(fault.choice);
}

}  // namespace

std::string_view work_name(Work work) { return kWorkNames[static_cast<std::size_t>(work)]; }

bool is_raw(Work work) { return work >= Work::kAllGather && work <= Work::kPass; }

bool is_rooted(Work work) { return work >= Work::kBroadcast && work <= Work::kScatter; }

std::string_view fault_name(FaultKind kind) { return kFaultNames[static_cast<std::size_t>(kind)]; }

bool is_silent(FaultKind kind) {
  return kind == FaultKind::kOtherRoot || kind == FaultKind::kStop || kind == FaultKind::kSkip ||
         is_fatal(kind);
}

bool is_mistake(FaultKind kind) {
  return kind == FaultKind::kRefused || kind == FaultKind::kDisagree ||
         kind == FaultKind::kOtherRoot || kind == FaultKind::kSkip;
}

bool is_fatal(FaultKind kind) { return kind == FaultKind::kKill || kind == FaultKind::kSuspend; }

std::size_t rows_before(const Step& step, int from, int to) {
  const auto& sent = step.rows[static_cast<std::size_t>(from)];
  return std::accumulate(sent.begin(), sent.begin() + to, std::size_t{0});
}

std::size_t Trainer::count() const {
  return std::accumulate(counts.begin(), counts.end(), std::size_t{0});
}

Scenario Scenario::sound() const {
  Scenario copy = *this;
  copy.fault = {};
  copy.link = "none";
  copy.timeout = std::chrono::minutes(2);
  return copy;
}

std::string Scenario::text() const {
  std::string text = "seed " + std::to_string(seed) + ": " + std::to_string(ranks) +
                     " ranks, link " + link + ", deadline " + std::to_string(timeout.count()) +
                     " ms, " + fault_text(fault) + "; trainer: " + trainer.codec +
                     (trainer.progress == ProgressBy::kThread ? " by thread;" : " by caller;");
  for (std::size_t index = 0; index < steps.size(); ++index)
    text += " [" + std::to_string(index) + "] " + step_text(steps[index]);
  return text;
}

}  // namespace tersor::faults
