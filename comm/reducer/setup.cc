// What is done before a reducer's first step, and before a later one for parameters that are new.
#include "comm/collectives/choose.h"
#include "comm/reducer/impl.h"

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tersor {

// Before a step. Where it throws, the next call begins anew.
void GradientReducer::Impl::finalize() {
  if (sender_ == nullptr) {
    begin();
  } else if (taken_in_ < slots_.size()) {
    const Residence::Entry entry(*residence_);
    take_in_added();
  }
  taken_in_ = slots_.size();
}

void GradientReducer::Impl::begin() {
  ways_.begin();
  take_ways();
  residence_ = make_residence(memory_, options_.stream);
  residence_->bind(context_);
  residuals_.place(*residence_);
  place_added();
  context_.signature = fields().signature();
  context_.adder = adder_of(context_);
  make_sender();
}

// Nothing is under way: `add` saw to that. "auto" learns anew where it has more to choose for.
void GradientReducer::Impl::take_in_added() {
  const auto is_new = std::span(parameters_).subspan(taken_in_);
  const bool learns =
      std::ranges::any_of(is_new, [](const ReducerParameter& one) { return !one.ways.empty(); });
  place_added();
  if (learns) ways_.begin();
  change_ways();
}

void GradientReducer::Impl::place_added() {
  step_.set_parameters(slots_.size(), options_.order);
  residence_->set_parameters(slots_.size());
  gradients_.place(*residence_);
  context_.slots = slots_;
  context_.counters.resize(slots_.size());
  totals_.slots.resize(slots_.size());
  totals_.slot_steps.resize(slots_.size());
  for (std::size_t i = residuals_.parameters(); i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    slot.active = residence_->active(i);
    const StateRanges kept = kept_ranges(context_, parameters_[i], slot, context_.rank);
    residuals_.add(kept.encoded.count, kept.owned.count(), most_memory(parameters_[i], slot));
    slot.residual_first = kept.encoded.first;
    slot.owned = kept.owned;
  }
  bind_residuals();
}

void GradientReducer::Impl::make_sender() {
  auto sender = std::make_unique<Sender>(
      step_, context_, *residence_,
      Sender::Reducer{[this](const ReducerStep::Order& order) { return make_buckets(order); },
                      [this] { complete_step(); },
                      [this](const std::string& text) { return explained(text, fields()); }});
  driver_ = make_driver(driving(), *sender);
  sender_ = std::move(sender);
}

Driving GradientReducer::Impl::driving() const {
  if (context_.ranks == 1) return Driving::kCaller;
  if (context_.queues()) return Driving::kQueueing;
  const bool own = options_.progress == ProgressBy::kThread && channel_->traits().any_thread;
  return own ? Driving::kThread : Driving::kCaller;
}

std::vector<Bucket> GradientReducer::Impl::make_buckets(const ReducerStep::Order& order) const {
  return tersor::make_buckets(Planner(context_), order,
                              {ways_.algorithm(), options_.bucket_bytes, options_.chunk_count});
}

Fields GradientReducer::Impl::fields() const {
  Fields fields;
  fields.add("operation", std::string_view("reducer"))
      .add("reduction", options_.reduction, reduction_names())
      .add("algorithm", options_.algorithm, algorithm_names())
      .add("ranks", static_cast<std::uint32_t>(context_.ranks))
      .add("chunk_count", static_cast<std::uint64_t>(options_.chunk_count))
      .add("bucket_bytes", static_cast<std::uint64_t>(options_.bucket_bytes));
  for (std::size_t i = 0; i < slots_.size(); ++i)
    fields.begin("\"" + parameters_[i].name + "\"")
        .add("dtype", slots_[i].dtype, dtype_names())
        .add("count", static_cast<std::uint64_t>(slots_[i].count))
        .add("first_index", std::uint64_t{0})
        .add_codec(slots_[i].codec->spec().text())
        .add("name", parameters_[i].name);
  fields.end();
  for (const ReducerParameter& one : parameters_)
    for (const RulePhase& phase : one.choice.phases)
      fields.add("a rule's step", phase.from_step).add_codec(phase.codec->spec().text());
  for (const Slot& slot : slots_)
    if (slot.collective == Collective::kReduceScatter) fields.add("scattered", slot.parameter);
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    fields.begin("\"" + parameters_[i].name + "\"");
    if (slots_[i].codec->traits().needs_shape)
      fields.add("rows", static_cast<std::uint64_t>(slots_[i].rows));
    fields.add_unless_zero("order in memory", parameters_[i].order,
                           order_mark(slots_[i].parameter));
  }
  fields.end();
  if (of_ready()) fields.add("order of sending", std::string_view("of ready"));
  if (ways_.learns()) fields.add("learning", std::string_view("learns"));
  if (context_.on_device()) fields.add("memory", std::string_view("device"));
  add_grid(fields, context_.grid);
  if (hierarchy_ != nullptr) add_groups(fields, hierarchy_->groups(), options_.host_codec);
  return fields;
}

}  // namespace tersor
