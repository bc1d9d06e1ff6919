// What a reducer counted and decided.
#include "comm/reducer/impl.h"

#include <algorithm>
#include <cmath>

namespace tersor {
namespace {

std::string counted(std::size_t count, std::string_view thing) {
  return std::to_string(count) + " " + std::string(thing) + (count == 1 ? "" : "s");
}

std::string way_text(const Slot& slot, Algorithm algorithm) {
  const std::string way(algorithm_name(algorithm));
  if (slot.collective == Collective::kAllreduce) return way;
  return algorithm == Algorithm::kTwoShot ? "reduce-scatter" : "reduce-scatter, " + way;
}

}  // namespace

// When a step is complete: the driver has nothing under way, so its counters stand still.
void GradientReducer::Impl::snapshot_totals() {
  totals_.steps += 1;
  totals_.overflows = context_.overflows;
  totals_.sent_bytes = sent_bytes(context_) - sent_before_;
  totals_.wire_seconds = sender_->wire_seconds() - wire_before_;
  totals_.slots = context_.counters;
  for (std::uint32_t i = 0; i < slots_.size(); ++i)
    if (step_.is_ready(i)) totals_.slot_steps[i] += 1;
}

void GradientReducer::Impl::reset_statistics() {
  finish_steps();
  const auto lock = step_.lock();
  totals_ = {};
  totals_.slots.resize(slots_.size());
  totals_.slot_steps.resize(slots_.size());
  if (sender_ == nullptr) return;
  residence_->reset_overflows();
  sent_before_ = sent_bytes(context_);
  wire_before_ = sender_->wire_seconds();
  context_.overflows = 0;
  for (SlotCounters& counters : context_.counters) counters = {};
}

ReducerStatistics GradientReducer::Impl::total_statistics() {
  ReducerStatistics all;
  double residual = 0, error = 0;
  std::vector<ReducerStatistics> each = parameter_statistics();
  for (const ReducerStatistics& one : each) {
    all.gradient_bytes += one.gradient_bytes;
    all.encode_seconds += one.encode_seconds;
    all.decode_seconds += one.decode_seconds;
    residual += one.residual_norm * one.residual_norm;
    error = std::max(error, one.relative_error);
  }
  const auto lock = step_.lock();
  all.codec = options_.rules.empty() ? options_.codec : "by rules";
  all.algorithm = options_.algorithm;
  all.steps = totals_.steps;
  all.sent_bytes = totals_.sent_bytes;
  all.wire_seconds = totals_.wire_seconds;
  all.exposed_seconds = totals_.exposed_seconds;
  all.hidden_seconds = std::max(0.0, totals_.wire_seconds - totals_.exposed_seconds);
  all.relative_error = error;
  all.residual_norm = std::sqrt(residual);
  all.steps_discarded = totals_.discarded;
  if (residence_ != nullptr) all.overflows = residence_->overflows(totals_.overflows);
  return all;
}

// The wire and the waiting belong to all; they are shared out by the bytes that each one sent.
std::vector<ReducerStatistics> GradientReducer::Impl::parameter_statistics() {
  finish_steps();
  const auto lock = step_.lock();
  std::vector<ReducerStatistics> all;
  std::uint64_t sent = 0;
  for (const SlotCounters& counters : totals_.slots) sent += counters.sent_bytes;
  for (std::size_t i = 0; i < totals_.slots.size(); ++i) {
    const SlotCounters& counters = totals_.slots[i];
    const double share =
        sent == 0 ? 0.0 : static_cast<double>(counters.sent_bytes) / static_cast<double>(sent);
    ReducerStatistics one;
    one.name = parameters_[i].name;
    one.codec = slots_[i].codec->spec().text();
    one.reason = parameters_[i].choice.text();
    one.codec_may_change = parameters_[i].choice.may_change();
    one.algorithm = parameters_[i].algorithm;
    one.steps = totals_.slot_steps[i];
    one.gradient_bytes = one.steps * slots_[i].count * dtype_bytes(slots_[i].dtype);
    one.sent_bytes = counters.sent_bytes;
    one.encode_seconds = counters.encode_seconds;
    one.decode_seconds = counters.decode_seconds;
    one.wire_seconds = share * totals_.wire_seconds;
    one.exposed_seconds = share * totals_.exposed_seconds;
    one.hidden_seconds = std::max(0.0, one.wire_seconds - one.exposed_seconds);
    one.relative_error = parameters_[i].relative_error;
    one.residual_norm = norm(residuals_.current_sender(i), stream());
    one.steps_discarded = totals_.discarded;
    all.push_back(std::move(one));
  }
  return all;
}

std::string GradientReducer::Impl::explain() {
  finish_steps();
  const auto lock = step_.lock();
  std::string text;
  for (std::size_t i = 0; i < slots_.size(); ++i)
    text += parameters_[i].name + ": " + counted(slots_[i].count, "value") + " of " +
            std::string(dtype_name(slots_[i].dtype)) + " as " + slots_[i].codec->spec().text() +
            " (" + parameters_[i].choice.text() + "), " +
            way_text(slots_[i], parameters_[i].algorithm) + "\n";
  if (hierarchy_ != nullptr)
    text += "encoded between " + std::to_string(hierarchy_->groups().hosts()) +
            " hosts, added as " + options_.host_codec + " within them\n";
  if (step_.order_known())
    text += counted(slots_.size(), "parameter") + " in " + counted(sender_->messages(), "message") +
            (of_ready() ? ", in the order in which they are ready\n"
                        : ", in rank 0's order of the first step\n");
  return text + ways_.explain();
}

std::string GradientReducer::Impl::explain_choice() {
  finish_steps();
  const auto lock = step_.lock();
  return ways_.explain();
}

}  // namespace tersor
