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

constexpr std::uint32_t kMostRanks = 1 << 16;

void check_count(std::string_view name, std::string_view what, std::size_t found,
                 std::size_t wanted) {
  if (found == wanted) return;
  throw InvalidArgument("the state's " + std::string(what) + " of \"" + std::string(name) +
                        "\" has " + std::to_string(found) + " values, this reducer's " +
                        std::to_string(wanted));
}

void check_finite(std::string_view name, std::string_view what, std::span<const float> values,
                  float most) {
  const auto bad =
      std::ranges::find_if(values, [&](float value) { return !(std::abs(value) <= most); });
  if (bad == values.end()) return;
  throw InvalidArgument("value " + std::to_string(bad - values.begin()) + " of the state's " +
                        std::string(what) + " of \"" + std::string(name) + "\" is " +
                        std::to_string(*bad) + ": a state holds finite values only");
}

void check_place(const ReducerState::Parameter& found, const Slot& slot) {
  if (found.residual.empty() || found.residual_first == slot.residual_first) return;
  throw InvalidArgument("the state's residual of \"" + found.name + "\" begins at value " +
                        std::to_string(found.residual_first) + ", this rank's at " +
                        std::to_string(slot.residual_first) +
                        ": the ranks were on other hosts; save the portable state for that");
}

// The parameters are the same, in the same order.
void check_model(const ReducerState& state, std::span<const ReducerParameter> parameters,
                 std::size_t parameter) {
  const auto described = [](const auto& one) {
    return "\"" + one.name + "\" with " + std::to_string(one.count) + " values";
  };
  const std::string number = "parameter " + std::to_string(parameter);
  if (parameter >= parameters.size())
    throw InvalidArgument("the state's " + number + ", \"" + state.parameters[parameter].name +
                          "\", is none of this reducer's");
  const std::string own = described(parameters[parameter]);
  if (parameter >= state.parameters.size())
    throw InvalidArgument("the state has no " + number + ", this reducer's is " + own);
  const std::string saved = described(state.parameters[parameter]);
  if (saved != own)
    throw InvalidArgument("the state's " + number + " is " + saved + ", this reducer's is " + own);
}

// What "auto" begins with may be another codec in each run, and a schedule's codec another at each
// step; what is owed fits any that has feedback.
void check_codec(const ReducerState::Parameter& found, const ReducerParameter& own,
                 const Codec& codec) {
  if (found.codec == codec.spec().text()) return;
  for (const RulePhase& phase : own.choice.phases)
    if (found.codec == phase.codec->spec().text()) return;
  const bool is_auto = !own.ways.empty();
  if (is_auto && found.residual.empty() == !codec.has_feedback()) return;
  throw InvalidArgument("the state's \"" + found.name + "\" travelled as " + found.codec +
                        ", this reducer's travels as " + codec.spec().text());
}

void check_counts(const ReducerState& state, const Parameters& parameters, std::size_t parameter) {
  const ReducerState::Parameter& found = state.parameters[parameter];
  const Slot& slot = parameters.slots[parameter];
  const Residuals& residuals = parameters.residuals;
  if (found.codec == slot.codec->spec().text())
    check_count(found.name, "codec's memory", found.memory.size(), memory_count(slot));
  if (state.form == ReducerState::Form::kPortable) {
    check_count(found.name, "owner's residual", found.owner.size(), 0);
    return check_count(found.name, "residual", found.residual.size(),
                       slot.codec->has_feedback() ? parameters.all[parameter].count : 0);
  }
  check_count(found.name, "residual", found.residual.size(),
              residuals.current_sender(parameter).count());
  check_count(found.name, "owner's residual", found.owner.size(),
              residuals.current_owner(parameter).count());
  check_place(found, slot);
}

void check_values(const ReducerState& state, const Parameters& parameters, std::size_t parameter) {
  constexpr float kLargestBf16 = 0x1.fep127f;
  const ReducerState::Parameter& found = state.parameters[parameter];
  const bool is_bf16 = parameters.residuals.dtype() == Dtype::kBf16;
  const float largest = is_bf16 ? kLargestBf16 : std::numeric_limits<float>::max();
  const float factor = loading_factor(state, OwedBy::kAll, parameters, parameter);
  check_finite(found.name, "residual", found.residual, largest / std::max(factor, 1.0f));
  check_finite(found.name, "owner's residual", found.owner, largest);
  check_finite(found.name, "codec's memory", found.memory, std::numeric_limits<float>::max());
}

void check_run(const ReducerState& state, const Parameters& parameters) {
  if (state.reduction != parameters.options().reduction)
    throw InvalidArgument("the state belongs to the other reduction (sum or mean)");
  const ExchangeContext& context = parameters.context();
  const std::string whose =
      "the state is rank " + std::to_string(state.rank) + " of " + std::to_string(state.ranks);
  if (state.ranks > kMostRanks || state.rank >= state.ranks)
    throw InvalidArgument(whose + ", which is no rank");
  const bool same = static_cast<int>(state.ranks) == context.ranks &&
                    static_cast<int>(state.rank) == context.rank;
  if (state.form == ReducerState::Form::kExact && !same)
    throw InvalidArgument(whose + "'s own, this is rank " + std::to_string(context.rank) + " of " +
                          std::to_string(context.ranks) +
                          "; for other ranks save the portable state");
  if (!state.order.empty() && !is_order(state.order, parameters.count()))
    throw InvalidArgument("the state's order of sending is no permutation of the " +
                          std::to_string(parameters.count()) + " parameters");
}

/// Whether every rank encodes a part of the parameter, and so has its codec's memory.
bool all_encode(const ExchangeContext& context, const Slot& slot) {
  for (int rank = 0; rank < context.ranks; ++rank)
    if (state_ranges(context, slot, rank).encoded.count == 0) return false;
  return true;
}

std::string text_of(const LoadedState& record) {
  return std::string(record.form == ReducerState::Form::kExact ? "the exact" : "the portable") +
         " state of step " + std::to_string(record.step);
}

}  // namespace

// A residual's contribution to the result stays the same: the equal shares of the residual, one on
// each rank that encodes the parameter, add up to what the old run would have added.
float loading_factor(const ReducerState& state, OwedBy whom, const Parameters& parameters,
                     std::size_t parameter) {
  if (state.form == ReducerState::Form::kExact) return 1.0f;
  const ExchangeContext& context = parameters.context();
  const Slot& slot = parameters.slots[parameter];
  const double shares = whom == OwedBy::kAll ? encoding_ranks(context, slot) : 1;
  const double share =
      state.reduction == Reduction::kSum ? 1.0 / shares : context.ranks / (shares * state.ranks);
  return static_cast<float>(share) / owed(context, slot).sender;
}

void check_state(const ReducerState& state, const Parameters& parameters) {
  check_run(state, parameters);
  for (std::size_t i = 0; i < std::max(state.parameters.size(), parameters.count()); ++i) {
    check_model(state, parameters.all, i);
    check_codec(state.parameters[i], parameters.all[i], *parameters.slots[i].codec);
    check_counts(state, parameters, i);
    check_values(state, parameters, i);
  }
}

LoadedState describe(const ReducerState& state, const Parameters& parameters) {
  Signature digest;
  digest.add(state.ranks);
  for (std::size_t i = 0; i < state.parameters.size(); ++i) {
    const ReducerState::Parameter& one = state.parameters[i];
    digest.add(one.codec);
    if (one.memory.empty() || !all_encode(parameters.context(), parameters.slots[i])) continue;
    digest.add(std::string_view(reinterpret_cast<const char*>(one.memory.data()),
                                one.memory.size() * sizeof(float)));
  }
  return {.step = state.step, .form = state.form, .digest = digest.value()};
}

void check_alike(std::span<const LoadedState> records) {
  const LoadedState& first = records.front();
  for (std::size_t rank = 1; rank < records.size(); ++rank) {
    const LoadedState& other = records[rank];
    const std::string own = text_of(first), others = text_of(other);
    if (own == others && first.digest == other.digest) continue;
    throw TransportError("gradient reducer: rank 0 loaded " + own + ", rank " +
                         std::to_string(rank) + (own == others ? " another " : " ") +
                         (own == others ? others.substr(4) : others) +
                         ": load one save on all ranks");
  }
}

}  // namespace tersor
