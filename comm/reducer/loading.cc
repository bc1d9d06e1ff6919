#include "comm/reducer/loading.h"

#include "comm/collectives/planner.h"
#include "comm/reducer/sender.h"

#include <tersor/error.h>
#include <tersor/wire.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <string_view>

namespace tersor {
namespace {

constexpr std::uint32_t kMaxRanks = 1 << 16;

void check_values(const std::string& name, std::string_view what, std::span<const float> values,
                  std::size_t count, float max_magnitude) {
  const std::string subject = "the state's " + std::string(what) + " of \"" + name + "\"";
  if (values.size() != count)
    throw InvalidArgumentError(subject + " has " + std::to_string(values.size()) +
                               " values, this reducer has " + std::to_string(count));
  for (std::size_t i = 0; i < count; ++i)
    if (!(std::abs(values[i]) <= max_magnitude))
      throw InvalidArgumentError("value " + std::to_string(i) + " of " + subject + " is " +
                                 std::to_string(values[i]) + ": a state holds finite values only");
}

void check_first_index(const ReducerState::Parameter& found, const ParameterFeedback& own) {
  if (found.residual.empty() || found.residual_first == own.sender_first) return;
  throw InvalidArgumentError("the state's residual of \"" + found.name + "\" begins at value " +
                             std::to_string(found.residual_first) + ", this rank's at " +
                             std::to_string(own.sender_first) +
                             ": the ranks were on other hosts; load a portable state");
}

// Throws unless the state has the same parameters in the same order.
void check_model(const ReducerState& state, std::span<const ReducerParameter> parameters,
                 std::size_t parameter) {
  const auto described = [&](const auto& all) {
    if (parameter >= all.size()) return std::string();
    return "\"" + all[parameter].name + "\" with " + std::to_string(all[parameter].count) +
           " values";
  };
  const std::string saved = described(state.parameters), own = described(parameters);
  if (saved == own) return;
  const std::string number = "parameter " + std::to_string(parameter);
  if (own.empty())
    throw InvalidArgumentError("the state's " + number + ", \"" + state.parameters[parameter].name +
                               "\", was not added to this reducer: the state is of another model");
  throw InvalidArgumentError(
      (saved.empty() ? "the state has no " + number : "the state's " + number + " is " + saved) +
      ", this reducer's is " + own + ": the state is of another model");
}

// "auto" may start with another codec in each run, and a schedule changes the codec between steps.
// A residual fits any codec with feedback.
void check_codec(const ReducerState::Parameter& found, const ReducerParameter& own,
                 const Codec& codec) {
  if (found.codec == codec.spec().text()) return;
  for (const RulePhase& phase : own.choice.phases)
    if (found.codec == phase.codec->spec().text()) return;
  const bool is_auto = !own.predictions.empty();
  if (is_auto && found.residual.empty() == !codec.has_feedback()) return;
  throw InvalidArgumentError("the state's \"" + found.name + "\" used codec " + found.codec +
                             ", this reducer uses " + codec.spec().text() + ": use the same codec");
}

void check_lists(const ReducerState& state, const Parameters& parameters, std::size_t parameter) {
  constexpr float kLargest = std::numeric_limits<float>::max(), kLargestBf16 = 0x1.fep127f;
  const ReducerState::Parameter& found = state.parameters[parameter];
  const ExchangeParameter& param = parameters.params[parameter];
  const Residuals& residuals = parameters.residuals;
  const bool exact = state.form == ReducerState::Form::kExact;
  const bool same_codec = found.codec == param.codec->spec().text();
  const std::size_t whole = param.codec->has_feedback() ? parameters.all[parameter].count : 0;
  const float largest = residuals.dtype() == Dtype::kBf16 ? kLargestBf16 : kLargest;
  const float factor = loading_factor(state, HeldBy::kAll, parameters, parameter);
  check_values(found.name, "residual", found.residual,
               exact ? residuals.current_sender(parameter).count() : whole,
               largest / std::max(factor, 1.0f));
  check_values(found.name, "owner's residual", found.owner,
               exact ? residuals.current_owner(parameter).count() : 0, largest);
  check_values(found.name, "codec's memory", found.memory,
               same_codec ? memory_count(param) : found.memory.size(), kLargest);
  if (exact) check_first_index(found, parameters.feedback[parameter]);
}

void check_run(const ReducerState& state, const Parameters& parameters) {
  if (state.reduction != parameters.options().reduction)
    throw InvalidArgumentError(
        "the state is of the other reduction (sum or mean): use the same reduction");
  const ExchangeContext& context = parameters.context();
  const std::string subject =
      "the state is of rank " + std::to_string(state.rank) + " of " + std::to_string(state.ranks);
  if (state.ranks > kMaxRanks || state.rank >= state.ranks)
    throw InvalidArgumentError(subject + ", which does not exist: the state is damaged");
  const bool same = static_cast<int>(state.ranks) == context.ranks.count &&
                    static_cast<int>(state.rank) == context.ranks.rank;
  if (state.form == ReducerState::Form::kExact && !same)
    throw InvalidArgumentError(
        subject + ", this is rank " + std::to_string(context.ranks.rank) + " of " +
        std::to_string(context.ranks.count) +
        ": load the state of this rank, or save a portable state in a run of " +
        std::to_string(state.ranks) + " ranks");
  if (!state.order.empty() && !is_permutation(state.order, parameters.count()))
    throw InvalidArgumentError("the state's sending order is not a permutation of the " +
                               std::to_string(parameters.count()) + " parameters");
}

/// True if every rank encodes part of the parameter and therefore holds the codec's memory.
bool all_encode(const ExchangeContext& context, const ExchangeParameter& param) {
  for (int rank = 0; rank < context.ranks.count; ++rank)
    if (state_ranges(context.ranks, param, rank).encoded.count == 0) return false;
  return true;
}

std::string text_of(const LoadedState& record) {
  return std::string(record.form == ReducerState::Form::kExact ? "exact" : "portable") +
         " state of step " + std::to_string(record.step);
}

}  // namespace

// Keeps the residual's contribution to the result: each encoding rank gets an equal share. The
// shares add up to the sum that the old run would have added.
float loading_factor(const ReducerState& state, HeldBy holders, const Parameters& parameters,
                     std::size_t parameter) {
  if (state.form == ReducerState::Form::kExact) return 1.0f;
  const ExchangeContext& context = parameters.context();
  const ExchangeParameter& param = parameters.params[parameter];
  const double shares = holders == HeldBy::kAll ? encoding_ranks(context.ranks, param) : 1;
  const double share = state.reduction == Reduction::kSum
                           ? 1.0 / shares
                           : context.ranks.count / (shares * state.ranks);
  return static_cast<float>(share) / residual_scales(context, param).sender;
}

void check_state(const ReducerState& state, const Parameters& parameters) {
  check_run(state, parameters);
  for (std::size_t i = 0; i < std::max(state.parameters.size(), parameters.count()); ++i) {
    check_model(state, parameters.all, i);
    check_codec(state.parameters[i], parameters.all[i], *parameters.params[i].codec);
    check_lists(state, parameters, i);
  }
}

LoadedState describe(const ReducerState& state, const Parameters& parameters,
                     std::uint64_t common) {
  Signature digest;
  digest.add(state.ranks).add(common);
  for (std::size_t i = 0; i < state.parameters.size(); ++i) {
    const ReducerState::Parameter& one = state.parameters[i];
    digest.add(one.codec);
    if (one.memory.empty() || !all_encode(parameters.context(), parameters.params[i])) continue;
    digest.add(std::string_view(reinterpret_cast<const char*>(one.memory.data()),
                                one.memory.size() * sizeof(float)));
  }
  return {.step = state.step, .form = state.form, .digest = digest.value()};
}

void check_same_state(std::span<const LoadedState> records) {
  const LoadedState& first = records.front();
  for (std::size_t rank = 1; rank < records.size(); ++rank) {
    const LoadedState& other = records[rank];
    const bool same_text = first.form == other.form && first.step == other.step;
    if (same_text && first.digest == other.digest) continue;
    throw TransportError("gradient reducer: rank 0 loaded the " + text_of(first) + ", rank " +
                         std::to_string(rank) + (same_text ? " another " : " the ") +
                         text_of(other) + ": load the same save on all ranks");
  }
}

}  // namespace tersor
