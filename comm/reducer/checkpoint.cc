// Checkpoints of the residuals, and what is done to them between steps.
#include "comm/collectives/host_copy.h"
#include "comm/reducer/impl.h"

#include <algorithm>

namespace tersor {
namespace {

void check_count(std::string_view name, std::string_view what, std::size_t found,
                 std::size_t wanted) {
  if (found == wanted) return;
  throw InvalidArgument("the state's " + std::string(what) + " of \"" + std::string(name) +
                        "\" has " + std::to_string(found) + " values, this reducer's " +
                        std::to_string(wanted));
}

/// By how many ranks a new run encodes each value, and divides a mean.
struct NewRun {
  int encoding_ranks;
  int ranks;
};

// What a residual must be multiplied by so that its contribution to the result stays the same: the
// equal shares of it, one on each rank that encodes it, must add up to what the old run would have
// added.
float portable_factor(const ReducerState& state, Reduction reduction, const NewRun& run) {
  const double shares = run.encoding_ranks;
  if (reduction == Reduction::kSum) return static_cast<float>(1.0 / shares);
  return static_cast<float>(run.ranks / (shares * state.ranks));
}

void check_place(const ReducerState::Parameter& found, const Slot& slot) {
  if (found.residual.empty() || found.residual_first == slot.residual_first) return;
  throw InvalidArgument("the state's residual of \"" + found.name + "\" begins at value " +
                        std::to_string(found.residual_first) + ", this rank's at " +
                        std::to_string(slot.residual_first) +
                        ": the ranks were on other hosts; save the portable state for that");
}

/// Where a rank's residual of so many values lies in the parameter, one range behind the other.
std::vector<Range> residual_ranges(const Slot& slot, std::size_t count) {
  if (slot.encoded_shards.empty()) return {{slot.residual_first, count}};
  const std::size_t shard = count / slot.encoded_shards.size();
  std::vector<Range> ranges;
  for (const int owner : slot.encoded_shards)
    ranges.push_back({static_cast<std::size_t>(owner) * shard, shard});
  return ranges;
}

/// Calls `take(values, residuals, count)` for each part of a residual of so many values that lies
/// in the first `known` values of its parameter: where it lies there, and in the residual.
template <typename Take>
void for_each_part(const Slot& slot, std::size_t count, std::size_t known, const Take& take) {
  std::size_t offset = 0;
  for (const Range& range : residual_ranges(slot, count)) {
    const std::size_t first = std::min(range.first, known);
    take(first, offset, std::min(range.count, known - first));
    offset += range.count;
  }
}

/// A rank's own residuals, in units of the ranks' sum, at their places in the whole parameter, the
/// rest 0; no padding.
std::vector<float> spread(const ReducerState::Parameter& own, const Slot& slot, const Owed& owed) {
  std::vector<float> whole(slot.codec->has_feedback() ? own.count : 0);
  for_each_part(slot, own.residual.size(), whole.size(),
                [&](std::size_t first, std::size_t kept, std::size_t count) {
                  for (std::size_t i = 0; i < count; ++i)
                    whole[first + i] = owed.sender * own.residual[kept + i];
                });
  auto value = own.owner.begin();
  for (std::size_t stage = 0; stage < owed.owner.size(); ++stage) {
    const Range& range = slot.owned.stages[stage];
    for (std::size_t i = 0; i < range.count; ++i)
      whole[range.first + i] += owed.owner[stage] * *value++;
  }
  return whole;
}

/// This rank's part of a residual of the whole parameter; padding has none.
std::vector<float> own_part(const std::vector<float>& whole, const Slot& slot, std::size_t count) {
  std::vector<float> part(count);
  for_each_part(slot, count, whole.size(),
                [&](std::size_t first, std::size_t kept, std::size_t known) {
                  std::copy_n(whole.data() + first, known, part.data() + kept);
                });
  return part;
}

/// Of the ranks that encode a parameter the first: others may never have seen its codec's memory.
bool tells_memory(const ExchangeContext& context, const Slot& slot) {
  if (slot.count == 0) return context.rank == 0;
  int rank = 0;
  while (state_ranges(context, slot, rank).encoded.count == 0) ++rank;
  return rank == context.rank;
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

void check_exact_counts(const ReducerState::Parameter& found, const Slot& slot,
                        const Residuals& residuals, std::size_t parameter) {
  check_count(found.name, "residual", found.residual.size(),
              residuals.current_sender(parameter).count());
  check_count(found.name, "owner's residual", found.owner.size(),
              residuals.current_owner(parameter).count());
  check_place(found, slot);
}

}  // namespace

// With ticks all happens on the trainer's thread, so that one channel is enough.
Transport& GradientReducer::Impl::control() {
  if (context_.queues()) return *channel_;
  if (control_ == nullptr) control_ = transport_.channel();
  return *control_;
}

// In the memory that the transport adds: on a device there may be no other.
void GradientReducer::Impl::sum_over_ranks(std::vector<float>& values) {
  const Buffer memory(values.size() * sizeof(float), memory_);
  const ValueSpan all = memory.values(values.size(), Dtype::kF32);
  from_floats(values, 1.0f, all, stream());
  std::vector<ValueSpan> parts;
  for (int part = 0; part < context_.ranks; ++part) {
    const Range range = part_range(all.count(), part, context_.ranks);
    parts.push_back(all.subspan(range.first, range.count));
  }
  Transport& transport = control();
  transport
      .sum({.name = "gradient reducer (portable state)",
            .signature = context_.signature,
            .tag = transport.reserve_tags(1),
            .timeout = options_.timeout,
            .memory = all.memory(),
            .stream = stream()},
           parts)
      .wait_synchronize();
  values = to_floats(all, stream());
}

ReducerState GradientReducer::Impl::exact_state() {
  finish_steps();
  const auto lock = step_.lock();
  finalize();
  ReducerState state{.form = ReducerState::Form::kExact,
                     .reduction = options_.reduction,
                     .ranks = static_cast<std::uint32_t>(context_.ranks),
                     .rank = static_cast<std::uint32_t>(context_.rank),
                     .step = residence_->step(),
                     .order = step_.order_known() ? step_.order() : ReducerStep::Order{},
                     .parameters = {}};
  for (std::size_t i = 0; i < slots_.size(); ++i) state.parameters.push_back(exact_state(i));
  return state;
}

ReducerState::Parameter GradientReducer::Impl::exact_state(std::size_t parameter) const {
  const Slot& slot = slots_[parameter];
  ReducerState::Parameter state{
      .name = parameters_[parameter].name,
      .codec = parameters_[parameter].ways.empty() ? slot.codec->spec().text()
                                                   : ways_.chosen_codec(parameter),
      .count = parameters_[parameter].count,
      .residual_first = slot.residual_first,
      .residual = to_floats(residuals_.current_sender(parameter), stream()),
      .owner = to_floats(residuals_.current_owner(parameter), stream()),
      .memory = to_floats(residuals_.current_memory(parameter, memory_count(slot)), stream())};
  for (int rank = 0; rank < context_.ranks; ++rank) {
    const StateRanges kept = kept_ranges(context_, parameters_[parameter], slot, rank);
    state.longest_residual = std::max<std::uint64_t>(state.longest_residual, kept.encoded.count);
    state.longest_owner = std::max<std::uint64_t>(state.longest_owner, kept.owned.count());
  }
  return state;
}

// The sum over ranks of all senders' and owners' residuals: what would still be added some day. Of
// the codecs' memories, which are equal, one rank's.
ReducerState GradientReducer::Impl::portable_state() {
  ReducerState state = exact_state();
  state.form = ReducerState::Form::kPortable;
  std::vector<float> all;
  for (std::size_t i = 0; i < state.parameters.size(); ++i) {
    ReducerState::Parameter& parameter = state.parameters[i];
    parameter.residual = spread(parameter, slots_[i], owed(context_, slots_[i]));
    parameter.residual_first = 0;
    parameter.longest_residual = parameter.residual.size();
    parameter.owner.clear();
    parameter.longest_owner = 0;
    if (!tells_memory(context_, slots_[i])) std::ranges::fill(parameter.memory, 0.0f);
    for (const std::vector<float>* values : {&parameter.residual, &parameter.memory})
      all.insert(all.end(), values->begin(), values->end());
  }
  sum_over_ranks(all);
  auto next = all.begin();
  for (ReducerState::Parameter& parameter : state.parameters)
    for (std::vector<float>* values : {&parameter.residual, &parameter.memory})
      for (float& value : *values) value = *next++;
  return state;
}

void GradientReducer::Impl::check_state(const ReducerState& state) const {
  if (state.reduction != options_.reduction)
    throw InvalidArgument("the state belongs to the other reduction (sum or mean)");
  const bool exact = state.form == ReducerState::Form::kExact;
  if (exact && (static_cast<int>(state.ranks) != context_.ranks ||
                static_cast<int>(state.rank) != context_.rank))
    throw InvalidArgument("the state is rank " + std::to_string(state.rank) + " of " +
                          std::to_string(state.ranks) + "'s own, this is rank " +
                          std::to_string(context_.rank) + " of " + std::to_string(context_.ranks) +
                          "; for other ranks save the portable state");
  for (std::size_t i = 0; i < std::max(state.parameters.size(), slots_.size()); ++i) {
    check_model(state, parameters_, i);
    const ReducerState::Parameter& found = state.parameters[i];
    const Slot& slot = slots_[i];
    check_codec(found, parameters_[i], *slot.codec);
    if (found.codec == slot.codec->spec().text())
      check_count(found.name, "codec's memory", found.memory.size(), memory_count(slot));
    if (exact)
      check_exact_counts(found, slot, residuals_, i);
    else
      check_count(found.name, "residual", found.residual.size(),
                  slot.codec->has_feedback() ? parameters_[i].count : 0);
  }
}

void GradientReducer::Impl::load(const ReducerState& state) {
  finish_steps();
  const auto lock = step_.lock();
  finalize();
  const bool exact = state.form == ReducerState::Form::kExact;
  check_state(state);
  steps_before_ = state.step - step_.number();
  follow_phases();
  adopt_ways(state);
  residuals_.clear();
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    const NewRun run{encoding_ranks(context_, slots_[i]), context_.ranks};
    const float factor =
        exact ? 1.0f
              : portable_factor(state, options_.reduction, run) / owed(context_, slots_[i]).sender;
    const ValueSpan residual = residuals_.current_sender(i);
    const std::vector<float>& values = state.parameters[i].residual;
    from_floats(exact ? values : own_part(values, slots_[i], residual.count()), factor, residual,
                stream());
    if (exact) from_floats(state.parameters[i].owner, 1.0f, residuals_.current_owner(i), stream());
    if (state.parameters[i].codec == slots_[i].codec->spec().text())
      from_floats(state.parameters[i].memory, 1.0f,
                  residuals_.current_memory(i, memory_count(slots_[i])), stream());
  }
  for (std::size_t i = 0; i < slots_.size(); ++i) hand_over(i);
  residence_->set_step(state.step);
  if (exact && !state.order.empty() && !of_ready()) sender_->adopt_order(state.order);
}

void GradientReducer::Impl::discard_step() {
  try {
    finish_steps();
  } catch (const Error&) {
    return;  // the step never became current: the residuals from before it stand
  }
  const auto lock = step_.lock();
  if (options_.transactions != Transactions::kOn)
    throw InvalidArgument("discard_step() needs ReducerOptions::transactions = kOn");
  if (!residuals_.discard())
    throw InvalidArgument("there is no step to discard: each can be discarded once");
  residence_->set_step(residence_->step() - 1);
  steps_before_ -= 1;
  totals_.discarded += 1;
  bind_residuals();
}

void GradientReducer::Impl::scale_residuals(float factor) {
  finish_steps();
  const auto lock = step_.lock();
  residuals_.scale(factor);
}

}  // namespace tersor
