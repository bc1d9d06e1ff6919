// Mistaken calls: a rank's call with mismatched or refused arguments.
#include <cstddef>
#include <cstdint>

#include "tests/faults/scenario.h"
#include "tests/support/specs.h"

namespace tersor::faults {
namespace {

Step with_another_operation(const Step& step) {
  Step other = step;
  other.work = step.work == Work::kAllgather ? Work::kAllreduce : Work::kAllgather;
  other.algorithm = Algorithm::kAuto;
  other.hosts = {};
  other.rows = {};
  if (!test::offers(other.codec, Exchange::kGather)) other.codec = "none";
  return other;
}

Step with_another_codec(const Step& step) {
  Step other = step;
  other.codec = step.codec == "int8" ? "int4" : "int8";
  other.algorithm = Algorithm::kAuto;
  return other;
}

/// The last peer that receives rows from this rank, because an additional row then moves no rows of
/// other ranks. The next rank if no peer receives rows.
std::size_t partner_of(const Step& step, std::size_t rank) {
  for (std::size_t peer = step.rows.size(); peer-- > 0;)
    if (peer != rank && step.rows[rank][peer] != 0) return peer;
  return (rank + 1) % step.rows.size();
}

/// An additional row sent or received. Work::kSend gets a longer message.
Step with_other_rows(const Step& step, const Fault& fault) {
  Step other = step;
  const auto rank = static_cast<std::size_t>(fault.rank);
  const std::size_t peer = partner_of(step, rank);
  const bool goes = step.work == Work::kSend || fault.choice % 2 == 0;
  goes ? ++other.rows[rank][peer] : ++other.rows[peer][rank];
  return other;
}

Step with_another_root(const Step& step, const Scenario& scenario) {
  Step other = step;
  const std::uint32_t others = static_cast<std::uint32_t>(scenario.ranks) - 1;
  other.root += 1 + static_cast<int>(scenario.fault.choice % others);
  other.root %= scenario.ranks;
  return other;
}

Step with_another_reduction(const Step& step) {
  Step other = step;
  other.reduction = step.reduction == Reduction::kSum ? Reduction::kMean : Reduction::kSum;
  return other;
}

Step with_another_raw_call(const Step& step, const Fault& fault) {
  Step other = step;
  if (fault.choice % 2 == 0)
    other.signature = 1;
  else
    other.work = step.work == Work::kBarrier ? Work::kAllGather : Work::kBarrier;
  return other;
}

}  // namespace

// A collective called instead of point-to-point work is detected only at the deadline.
Step with_other_arguments(const Step& step, const Scenario& scenario) {
  const Fault& fault = scenario.fault;
  if (fault.kind == FaultKind::kOtherRoot) return with_another_root(step, scenario);
  if (is_raw(step.work)) return with_another_raw_call(step, fault);
  Step other = step;
  switch (fault.choice / 2 % 6) {
    case 0:
      return with_another_codec(step);
    case 1:
      other.count = step.count + 1;
      return other;
    case 2:
      other.dtype = step.dtype == Dtype::kF32 ? Dtype::kF16 : Dtype::kF32;
      return other;
    case 3:
      return step.work == Work::kSend ? with_another_codec(step) : with_another_operation(step);
    case 4:
      if (!step.rows.empty()) return with_other_rows(step, fault);
      [[fallthrough]];
    default:
      return with_another_reduction(step);
  }
}

Step with_refused_arguments(const Step& step, const Scenario& scenario) {
  const Fault& fault = scenario.fault;
  Step refused = step;
  if (fault.choice % 3 == 0) refused.codec = "int9";
  if (fault.choice % 3 == 1) refused.dims = {scenario.ranks + 1};
  if (fault.choice % 3 != 2) return refused;
  if (is_rooted(step.work))
    refused.root = -1;
  else if (step.work == Work::kAllToAll)
    return with_other_rows(step, {.rank = fault.rank});  // without values for the row
  else
    refused.codec = "int8+ef";           // without a residual
  refused.algorithm = Algorithm::kAuto;  // with hosts, ranks communicate before the refusal
  return refused;
}

}  // namespace tersor::faults
