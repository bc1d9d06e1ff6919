#include "comm/reducer/parameters.h"

#include "comm/collectives/bind.h"
#include "comm/collectives/choose.h"
#include "comm/collectives/fold.h"
#include "comm/collectives/host_copy.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace tersor {
namespace {

unsigned generations(const ReducerOptions& options) {
  const bool two = options.transactions == Transactions::kOn || options.elastic == Elastic::kOn;
  return two ? 2 : 1;
}

}  // namespace

const RulePhase& ReducerParameter::phase(std::uint32_t step) const {
  const auto later = std::ranges::upper_bound(choice.phases, step, {}, &RulePhase::from_step);
  return *std::prev(later);
}

StateRanges kept_ranges(const ExchangeContext& context, const ReducerParameter& own,
                        const Slot& slot, int rank) {
  StateRanges kept = state_ranges(context, slot, rank);
  const bool feeds_back = slot.codec->has_feedback();
  const bool scatters = slot.collective == Collective::kReduceScatter;
  if (!feeds_back) kept.encoded.count = 0;
  if (!feeds_back || scatters || !own.may_go_two_shot()) kept.owned = {};
  return kept;
}

Owed owed(const ExchangeContext& context, const Slot& slot) {
  return context.reduction == Reduction::kSum ? Owed{} : Planner(context).owed(slot);
}

std::size_t memory_count(const Slot& slot, const Codec& codec) {
  return codec.memory_count({.count = slot.count, .rows = slot.rows, .columns = slot.columns});
}

std::size_t most_memory(const ReducerParameter& own, const Slot& slot) {
  std::size_t most = memory_count(slot);
  for (const RulePhase& phase : own.choice.phases)
    most = std::max(most, memory_count(slot, *phase.codec));
  return most;
}

Parameters::Parameters(const ReducerOptions& options, const ExchangeContext& context)
    : residuals(options.residual_dtype, generations(options)),
      options_(options),
      context_(context) {}

std::uint32_t Parameters::index_of(std::string_view name) const {
  const auto found = names_.find(name);
  if (found == names_.end())
    throw InvalidArgument("no parameter \"" + std::string(name) + "\" was added");
  return found->second;
}

// All gradients must use the same memory, and the transport must support this memory.
void Parameters::check_memory(const std::string& name, Memory memory) {
  if (slots.empty() && !placed_) memory_ = memory;
  const std::string what = "the gradient of \"" + name + "\"";
  if (memory != memory_)
    throw InvalidArgument(what + " lies " + std::string(memory_text(memory)) +
                          ", but those added before lie " + std::string(memory_text(memory_)));
  check_taken(*context_.transport, memory, what);
}

// Every rank's shard has the length of the longest shard.
void Parameters::shape_shards(const std::string& name, const GradientShape& shape,
                              Slot& slot) const {
  const auto ranks = static_cast<std::size_t>(context_.ranks);
  const std::size_t least = ceil_div(shape.count, ranks);
  const std::size_t shard = shape.shard_count == 0 ? least : shape.shard_count;
  if (context_.hierarchy != nullptr && !options_.hosts.empty())
    check_even(context_.hierarchy->groups(), "the reduce-scatter of \"" + name + "\"");
  if (shard < least)
    throw InvalidArgument("shards of " + std::to_string(shard) + " values on " +
                          std::to_string(ranks) + " ranks do not hold the " +
                          std::to_string(shape.count) + " of \"" + name + "\": give at least " +
                          std::to_string(least));
  slot.count = ranks * shard;
  slot.output_first = shard_range(slot.count, context_.rank, context_.ranks).first;
  if (const Hierarchy* hierarchy = hierarchy_of(context_, slot))
    slot.encoded_shards = hierarchy->groups().owners(hierarchy->groups().local_rank(context_.rank));
}

Slot Parameters::make_slot(const std::string& name, const GradientShape& shape,
                           ValueSpan gradient) {
  check_memory(name, shape.memory);
  Slot slot{.parameter = static_cast<std::uint32_t>(slots.size()),
            .count = shape.count,
            .rows = shape.rows,
            .columns = shape.columns,
            .dtype = shape.dtype,
            .collective = shape.collective,
            .input = gradient,
            .output = gradient};
  if (slot.collective == Collective::kReduceScatter) shape_shards(name, shape, slot);
  return slot;
}

GradientShape Parameters::shape(std::size_t parameter) const {
  const Slot& slot = slots[parameter];
  return {.count = slot.count,
          .dtype = slot.dtype,
          .memory = memory_,
          .rows = slot.rows,
          .columns = slot.columns,
          .order = all[parameter].order};
}

void Parameters::add(ReducerParameter own, Slot slot) {
  if (!names_.emplace(own.name, slot.parameter).second)
    throw InvalidArgument("a parameter \"" + own.name + "\" was added already");
  all.push_back(std::move(own));
  slots.push_back(std::move(slot));
}

void Parameters::use_memory(const Residence& residence) {
  placed_ = true;
  for (std::size_t i = residuals.parameters(); i < slots.size(); ++i) {
    Slot& slot = slots[i];
    slot.active = residence.active(i);
    const StateRanges kept = kept_ranges(context_, all[i], slot, context_.rank);
    residuals.add(kept.encoded.count, kept.owned.count(), most_memory(all[i], slot));
    slot.residual_first = kept.encoded.first;
    slot.owned = kept.owned;
  }
  bind();
}

void Parameters::bind() {
  for (std::size_t i = 0; i < residuals.parameters(); ++i) {
    slots[i].residual = residuals.sender(i);
    const bool owes = all[i].algorithm == Algorithm::kTwoShot;
    slots[i].owner = owes ? residuals.owner(i) : SegmentState{};
    slots[i].memory = residuals.memory(i, memory_count(slots[i]));
  }
}

void Parameters::commit(const std::function<bool(std::size_t)>& took_part) {
  residuals.commit(took_part);
  bind();
}

void Parameters::hand_over(StreamView stream) {
  for (std::size_t i = 0; i < slots.size(); ++i) hand_over(i, stream);
}

// The owner's residual is the same for every codec.
void Parameters::hand_over(std::size_t parameter, StreamView stream) {
  const ValueSpan owner = residuals.current_owner(parameter);
  if (owner.count() == 0 || all[parameter].algorithm == Algorithm::kTwoShot) return;
  const Slot& slot = slots[parameter];
  const ValueSpan sender = residuals.current_sender(parameter);
  std::vector<float> sum = to_floats(sender, stream);
  const std::vector<float> more = to_floats(owner, stream);
  const Owed owed = tersor::owed(context_, slot);
  fold_owner(more, slot, owed, {sum, slot.residual_first, owed.sender});
  from_floats(sum, 1.0f, sender, stream);
  residuals.clear_owner(parameter);
}

void Parameters::add_each(Agreement& agreement) const {
  for (std::size_t i = 0; i < slots.size(); ++i)
    agreement.begin("\"" + all[i].name + "\"")
        .add("dtype", slots[i].dtype, dtype_names())
        .add("count", static_cast<std::uint64_t>(slots[i].count))
        .add("first_index", std::uint64_t{0})
        .add("codec", slots[i].codec->spec().text())
        .add("name", all[i].name);
  agreement.end();
}

// Entries added in later versions follow the earlier entries.
void Parameters::add_rest_of_each(Agreement& agreement) const {
  for (const ReducerParameter& one : all)
    for (const RulePhase& phase : one.choice.phases)
      agreement.add("a rule's step", phase.from_step).add("codec", phase.codec->spec().text());
  for (const Slot& slot : slots)
    if (slot.collective == Collective::kReduceScatter) agreement.add("scattered", slot.parameter);
  for (std::size_t i = 0; i < slots.size(); ++i) {
    agreement.begin("\"" + all[i].name + "\"");
    if (slots[i].codec->traits().needs_shape)
      agreement.add("rows", static_cast<std::uint64_t>(slots[i].rows));
    agreement.add_unless_zero("order in memory", all[i].order, order_mark(slots[i].parameter));
  }
  agreement.end();
}

Agreement Parameters::agreement(bool learns) const {
  Agreement agreement;
  agreement.add("operation", std::string_view("reducer"))
      .add("reduction", options_.reduction, reduction_names())
      .add("algorithm", options_.algorithm, algorithm_names())
      .add("ranks", static_cast<std::uint32_t>(context_.ranks))
      .add("chunk_count", static_cast<std::uint64_t>(options_.chunk_count))
      .add("bucket_bytes", static_cast<std::uint64_t>(options_.bucket_bytes))
      .add_unless_zero("number of loaded states", loaded_states, "loaded states");
  add_each(agreement);
  add_rest_of_each(agreement);
  if (options_.order == SendingOrder::kOfReady)
    agreement.add("order of sending", std::string_view("of ready"));
  if (learns) agreement.add("learning", std::string_view("learns"));
  agreement.add_unless_zero("elastic", static_cast<std::uint32_t>(options_.elastic), "elastic")
      .add_unless_zero("weights", static_cast<std::uint32_t>(options_.weights), "weights");
  if (context_.on_device()) agreement.add("memory", std::string_view("device"));
  add_grid(agreement, context_.grid);
  if (context_.hierarchy != nullptr)
    add_groups(agreement, context_.hierarchy->groups(), options_.host_codec);
  return agreement;
}

}  // namespace tersor
