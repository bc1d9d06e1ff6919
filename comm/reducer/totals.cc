#include "comm/reducer/totals.h"

#include "comm/collectives/hierarchy.h"

#include <algorithm>

namespace tersor {

void Totals::set_parameters(std::size_t count) {
  params_.resize(count);
  param_steps_.resize(count);
}

void Totals::record_step(const ExchangeContext& context, double wire_seconds,
                         const std::function<bool(std::uint32_t)>& took_part) {
  steps_ += 1;
  overflows_ = context.overflows;
  sent_bytes_ = tersor::sent_bytes(context) - sent_before_;
  wire_seconds_ = wire_seconds - wire_before_;
  params_ = context.counters;
  for (std::uint32_t i = 0; i < param_steps_.size(); ++i)
    if (took_part(i)) param_steps_[i] += 1;
}

void Totals::continue_from(const Totals& previous, ExchangeContext& context) {
  *this = previous;
  sent_before_ = tersor::sent_bytes(context) - previous.sent_bytes_;
  wire_before_ = -previous.wire_seconds_;
  context.overflows = previous.overflows_;
  context.counters = previous.params_;
}

void Totals::reset(ExchangeContext& context, double wire_seconds) {
  const std::size_t count = params_.size();
  *this = {};
  set_parameters(count);
  sent_before_ = tersor::sent_bytes(context);
  wire_before_ = wire_seconds;
  context.overflows = 0;
  for (ParamCounters& counters : context.counters) counters = {};
}

// May be called in each step for logging, and therefore computes only sums.
ReducerStatistics Totals::all(const Parameters& parameters) const {
  ReducerStatistics all;
  for (std::size_t i = 0; i < params_.size(); ++i) {
    all.gradient_bytes += gradient_bytes(i, parameters);
    all.encode_seconds += params_[i].encode_seconds;
    all.decode_seconds += params_[i].decode_seconds;
    all.relative_error = std::max(all.relative_error, parameters.all[i].relative_error);
  }
  const ReducerOptions& options = parameters.options();
  all.codec = options.rules.empty() ? options.codec : "by rules";
  all.algorithm = options.algorithm;
  all.steps = steps_;
  all.sent_bytes = sent_bytes_;
  all.wire_seconds = wire_seconds_;
  all.exposed_seconds = exposed_seconds_;
  all.hidden_seconds = std::max(0.0, wire_seconds_ - exposed_seconds_);
  all.steps_discarded = discarded_;
  all.codec_changes = codec_changes_;
  all.overflows = overflows_;
  return all;
}

std::uint64_t Totals::gradient_bytes(std::size_t parameter, const Parameters& parameters) const {
  const ExchangeParameter& param = parameters.params[parameter];
  return param_steps_[parameter] * param.count * dtype_bytes(param.dtype);
}

// All parameters share the wire time and the waiting time, in proportion to the sent bytes.
std::vector<ReducerStatistics> Totals::of_each(const Parameters& parameters) const {
  std::uint64_t sent = 0;
  for (const ParamCounters& counters : params_) sent += counters.sent_bytes;
  std::vector<ReducerStatistics> each;
  for (std::size_t i = 0; i < params_.size(); ++i) {
    const auto own = static_cast<double>(params_[i].sent_bytes);
    each.push_back(of(i, parameters, sent == 0 ? 0.0 : own / static_cast<double>(sent)));
  }
  return each;
}

ReducerStatistics Totals::of(std::size_t parameter, const Parameters& parameters,
                             double share) const {
  const ReducerParameter& own = parameters.all[parameter];
  const ExchangeParameter& param = parameters.params[parameter];
  const ParamCounters& counters = params_[parameter];
  ReducerStatistics one;
  one.name = own.name;
  one.codec = param.codec->spec().text();
  one.reason = own.choice.text();
  one.codec_may_change = own.choice.may_change();
  one.algorithm = own.algorithm;
  one.steps = param_steps_[parameter];
  one.gradient_bytes = gradient_bytes(parameter, parameters);
  one.sent_bytes = counters.sent_bytes;
  one.encode_seconds = counters.encode_seconds;
  one.decode_seconds = counters.decode_seconds;
  one.wire_seconds = share * wire_seconds_;
  one.exposed_seconds = share * exposed_seconds_;
  one.hidden_seconds = std::max(0.0, one.wire_seconds - one.exposed_seconds);
  one.relative_error = own.relative_error;
  one.steps_discarded = discarded_;
  return one;
}

}  // namespace tersor
