// A reducer's last steps before its first one: all parameters are known then.
#include "comm/reducer/impl.h"

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

namespace tersor {

// Once all parameters are known: residual memory, signature, who sends. Where it throws, the next
// call begins anew.
void GradientReducer::Impl::finalize() {
  if (sender_ != nullptr) return;
  step_.set_parameters(slots_.size(), options_.order);
  make_learner();
  place();
  context_.slots = slots_;
  context_.counters.resize(slots_.size());
  totals_.slots.resize(slots_.size());
  totals_.slot_steps.resize(slots_.size());
  context_.signature = signature();
  context_.adder = hierarchy_ == nullptr ? channel_.get() : hierarchy_->owners();
  make_sender();
}

void GradientReducer::Impl::place() {
  residence_ = make_residence(memory_, options_.stream, slots_.size());
  nowhere_.assign(slots_.size(), false);
  residence_->bind(context_);
  residuals_.place(*residence_);
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    slot.active = residence_->active(i);
    const StateRanges kept = kept_ranges(i, context_.rank);
    residuals_.add(kept.encoded.count, kept.owned.count(), most_memory(i));
    slot.residual_first = kept.encoded.first;
    slot.owned = kept.owned;
  }
  bind_residuals();
}

void GradientReducer::Impl::make_sender() {
  auto sender = std::make_unique<Sender>(
      step_, context_, *residence_,
      Sender::Reducer{[this](const ReducerStep::Order& order) { return make_buckets(order); },
                      [this] { complete_step(); }});
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
  const Planner planner(context_, hierarchy_.get(), threads_.count());
  return tersor::make_buckets(planner, order,
                              {algorithm_, options_.bucket_bytes, options_.chunk_count});
}

std::uint64_t GradientReducer::Impl::signature() const {
  Signature signature;
  signature.add(std::string_view("reducer"))
      .add(options_.reduction)
      .add(options_.algorithm)
      .add(static_cast<std::uint32_t>(context_.ranks))
      .add(static_cast<std::uint64_t>(options_.chunk_count))
      .add(static_cast<std::uint64_t>(options_.bucket_bytes));
  for (std::size_t i = 0; i < slots_.size(); ++i)
    signature.add(slots_[i].dtype)
        .add(static_cast<std::uint64_t>(slots_[i].count))
        .add(std::uint64_t{0})
        .add(slots_[i].codec->spec().text())
        .add(parameters_[i].name);
  for (const Parameter& one : parameters_)
    for (const RulePhase& phase : one.phases)
      signature.add(phase.from_step).add(phase.codec->spec().text());
  for (const Slot& slot : slots_)
    if (slot.collective == Collective::kReduceScatter) signature.add(slot.parameter);
  if (of_ready()) signature.add(std::string_view("of ready"));
  if (learns()) signature.add(std::string_view("learns"));
  if (context_.on_device()) signature.add(std::string_view("device"));
  add_grid(signature, context_.grid);
  if (hierarchy_ != nullptr) add_groups(signature, hierarchy_->groups(), options_.host_codec);
  return signature.value();
}

}  // namespace tersor
