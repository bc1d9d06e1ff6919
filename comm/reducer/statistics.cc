// Statistics and explanations of a reducer.
#include "comm/reducer/impl.h"

namespace tersor {
namespace {

std::string count_text(std::size_t count, std::string_view thing) {
  return std::to_string(count) + " " + std::string(thing) + (count == 1 ? "" : "s");
}

std::string algorithm_text(const ExchangeParameter& param, Algorithm algorithm) {
  const std::string name(algorithm_name(algorithm));
  if (param.collective == Collective::kAllreduce) return name;
  return algorithm == Algorithm::kTwoShot ? "reduce-scatter" : "reduce-scatter, " + name;
}

std::string line_of(const ReducerParameter& own, const ExchangeParameter& param) {
  return own.name + ": " + count_text(param.count, "value") + " of " +
         std::string(dtype_name(param.dtype)) + " as " + param.codec->spec().text() + " (" +
         own.choice.text() + "), " + algorithm_text(param, own.algorithm) + "\n";
}

}  // namespace

void GradientReducer::reset_statistics() {
  Impl& impl = *impl_;
  const OnDevice on_device(impl);
  impl.finish_steps();
  const auto lock = impl.step_.lock();
  if (impl.sender_ == nullptr) return;
  impl.backend_->reset_overflows();
  impl.totals_.reset(impl.context_, impl.sender_->wire_seconds());
}

ReducerStatistics GradientReducer::statistics() const {
  {
    const OnDevice on_device(*impl_);
    const auto lock = impl_->stopped();
    if (impl_->backend_ != nullptr) impl_->backend_->synchronize();
  }
  return statistics_so_far();
}

ReducerStatistics GradientReducer::statistics_so_far() const {
  const Impl& impl = *impl_;
  const LockedStep lock = impl_->step_.lock();
  ReducerStatistics all = impl.totals_.all(impl.parameters_);
  if (impl.backend_ != nullptr) all.overflows = impl.backend_->overflows(all.overflows);
  return all;
}

std::vector<ReducerStatistics> GradientReducer::parameter_statistics() const {
  const auto lock = OnDevice(*impl_)->stopped();
  return impl_->totals_.of_each(impl_->parameters_);
}

std::vector<double> GradientReducer::residual_norms() const {
  const OnDevice on_device(*impl_);
  const auto lock = impl_->stopped_between_steps("residual_norms()");
  if (impl_->backend_ == nullptr) return {};
  return impl_->parameters_.residuals.norms();
}

// Never waits. Ignores the error of a failed exchange, because a trace is most useful after an
// error.
void GradientReducer::write_trace() const {
  if (impl_->trace_ == nullptr)
    throw InvalidArgumentError("this reducer keeps no trace: name a file by the option trace");
  const LockedStep lock = impl_->step_.lock();
  impl_->trace_->write();
}

std::string GradientReducer::explain() const {
  const Impl& impl = *impl_;
  const LockedStep step = OnDevice(*impl_)->stopped();
  std::string text;
  for (std::size_t i = 0; i < impl.parameters_.count(); ++i)
    text += line_of(impl.parameters_.all[i], impl.parameters_.params[i]);
  if (impl.hierarchy_ != nullptr)
    text += "encoded between " + std::to_string(impl.hierarchy_->groups().hosts()) +
            " hosts, added as " + impl.options_.host_codec + " within them\n";
  if (step->order_known())
    text += count_text(impl.parameters_.count(), "parameter") + " in " +
            count_text(impl.sender_->messages(), "message") +
            (impl.in_ready_order() ? ", in the order in which they are ready\n"
                                   : ", in rank 0's order of the first step\n");
  if (impl.survivors_ != nullptr) text += impl.survivors_->explain();
  return text + impl.policy_.explain();
}

std::string GradientReducer::explain_choice() const {
  const auto lock = OnDevice(*impl_)->stopped();
  return impl_->policy_.explain();
}

}  // namespace tersor
