// The GradientReducer's face, and its parameters. The rest stands in setup.cc, steps.cc (the
// trainer's side), checkpoint.cc and statistics.cc.
#include "comm/collectives/bind.h"
#include "comm/reducer/impl.h"

#include <tersor/reducer.h>

#include <algorithm>
#include <utility>

namespace tersor {
namespace {

unsigned generations(const ReducerOptions& options) {
  return options.transactions == Transactions::kOn ? 2 : 1;
}

void check_options(const ReducerOptions& options) {
  if (options.residual_dtype != Dtype::kF32 && options.residual_dtype != Dtype::kBf16)
    throw InvalidArgument("residuals are f32 or bf16, not " +
                          std::string(dtype_name(options.residual_dtype)));
}

}  // namespace

GradientReducer::Impl::Impl(Transport& transport, ReducerOptions wanted)
    : options_(std::move(wanted)),
      ways_(options_, context_, parameters_, slots_),
      transport_(transport),
      channel_(transport.channel()),
      threads_(options_.threads),
      residuals_(options_.residual_dtype, generations(options_)),
      gradients_(options_, context_, parameters_, slots_, residuals_) {
  check_options(options_);
  ways_.find_tuner(transport);
  if (ways_.automatic() && !channel_->traits().queues) control_ = transport.channel();
  handle_->reducer = this;
  context_.transport = channel_.get();
  context_.rank = channel_->rank();
  context_.ranks = channel_->ranks();
  context_.grid = Grid::of(options_.dims, context_.ranks, options_.error_growth);
  context_.name = "gradient reducer";
  context_.seed = options_.seed;
  context_.reduction = options_.reduction;
  context_.checksum = options_.checksum;
  context_.timeout = options_.timeout;
  context_.threads = &threads_;
  find_hierarchy();
}

// On one host all that goes is the host's own sum; hosts of one rank each are ranks as any.
void GradientReducer::Impl::find_hierarchy() {
  if (options_.algorithm != Algorithm::kHierarchical) return;
  Hosts hosts = find_hosts(*channel_, options_.hosts, options_.host_codec, options_.error_growth);
  if (hosts.is_one) ways_.set_single_host(std::move(hosts.codec));
  if (!hosts.groups) return;
  if (options_.measure_error == MeasureError::kOn)
    throw InvalidArgument(
        "measure_error needs ranks that encode their own gradients: use another algorithm than "
        "hierarchical");
  hierarchy_ =
      std::make_unique<Hierarchy>(*channel_, *std::move(hosts.groups), std::move(hosts.codec));
  context_.hierarchy = hierarchy_.get();
}

void GradientReducer::Impl::check_may_add(const std::string& name) const {
  if (!step_.untouched())
    throw InvalidArgument("add \"" + name +
                          "\" between two steps: gradients of this one are ready");
  if (ways_.was_captured())
    throw InvalidArgument("add \"" + name +
                          "\" before a step is captured: a graph goes on as it was");
}

// All gradients lie in one memory, which the transport must take.
void GradientReducer::Impl::check_memory(const std::string& name, Memory memory) {
  if (slots_.empty() && residence_ == nullptr) memory_ = memory;
  const std::string place(memory_text(memory));
  if (memory != memory_)
    throw InvalidArgument("the gradient of \"" + name + "\" lies " + place +
                          ", but those added before lie " + std::string(memory_text(memory_)));
  const TransportTraits traits = channel_->traits();
  if (memory_ == Memory::kHost ? traits.host : traits.device) return;
  throw InvalidArgument("the gradient of \"" + name + "\" lies " + place +
                        ", but this transport takes " +
                        (traits.host ? "host memory" : "device memory"));
}

// Each rank's part of the gradient is as long as the longest.
void GradientReducer::Impl::shape_shards(const std::string& name, const GradientShape& shape,
                                         Slot& slot) const {
  const auto ranks = static_cast<std::size_t>(context_.ranks);
  const std::size_t least = ceil_div(shape.count, ranks);
  const std::size_t shard = shape.shard_count == 0 ? least : shape.shard_count;
  if (hierarchy_ != nullptr && !options_.hosts.empty())
    check_even(hierarchy_->groups(), "the reduce-scatter of \"" + name + "\"");
  if (shard < least)
    throw InvalidArgument("shards of " + std::to_string(shard) + " values on " +
                          std::to_string(ranks) + " ranks do not hold the " +
                          std::to_string(shape.count) + " of \"" + name + "\": give at least " +
                          std::to_string(least));
  slot.count = ranks * shard;
  slot.output_first = shard_range(slot.count, context_.rank, context_.ranks).first;
  if (const Hierarchy* hierarchy = hierarchy_of(context_, slot))
    slot.encoded_shards = hierarchy->groups().owners(hierarchy->groups().place(context_.rank));
}

void GradientReducer::Impl::add(std::string name, const GradientShape& shape, ValueSpan gradient) {
  finish_steps();
  const auto lock = step_.lock();
  check_may_add(name);
  check_memory(name, shape.memory);
  Slot slot{.parameter = static_cast<std::uint32_t>(slots_.size()),
            .count = shape.count,
            .rows = shape.rows,
            .columns = shape.columns,
            .dtype = shape.dtype,
            .collective = shape.collective,
            .input = gradient,
            .output = gradient};
  const bool scatters = shape.collective == Collective::kReduceScatter;
  if (scatters) shape_shards(name, shape, slot);
  ReducerParameter own{.name = std::move(name),
                       .count = shape.count,
                       .order = shape.order,
                       .given_anew = scatters || gradient.count() != shape.count,
                       .gradient = gradient};
  ways_.choose(own, slot, memory_);
  if (!names_.emplace(own.name, slot.parameter).second)
    throw InvalidArgument("a parameter \"" + own.name + "\" was added already");
  parameters_.push_back(std::move(own));
  slots_.push_back(std::move(slot));
}

std::uint32_t GradientReducer::Impl::index_of(std::string_view name) const {
  const auto found = names_.find(name);
  if (found == names_.end())
    throw InvalidArgument("no parameter \"" + std::string(name) + "\" was added");
  return found->second;
}

bool ReducerHandle::test() const { return shared_->reducer->test(parameter_, step_); }
void ReducerHandle::wait() const { shared_->reducer->wait_for(parameter_, step_); }

GradientReducer::GradientReducer(Transport& transport, ReducerOptions options)
    : impl_(std::make_unique<Impl>(transport, std::move(options))) {}
GradientReducer::~GradientReducer() = default;

void GradientReducer::add(std::string name, ValueSpan gradient, std::size_t rows,
                          std::size_t columns) {
  impl_->add(std::move(name),
             {gradient.count(), gradient.dtype(), gradient.memory(), rows, columns}, gradient);
}

void GradientReducer::add(std::string name, const GradientShape& shape) {
  impl_->add(std::move(name), shape, {});
}

ReducerHandle GradientReducer::ready(std::string_view name) {
  return impl_->ready(impl_->index_of(name), std::nullopt, Contribution::kGradient);
}

ReducerHandle GradientReducer::ready(std::string_view name, ValueSpan gradient,
                                     Contribution contribution) {
  return impl_->ready(impl_->index_of(name), Gradients::Given{gradient, {}}, contribution);
}

ReducerHandle GradientReducer::ready(std::string_view name, ValueSpan gradient, ValueSpan shard,
                                     Contribution contribution) {
  return impl_->ready(impl_->index_of(name), Gradients::Given{gradient, shard}, contribution);
}

std::vector<ReducerHandle> GradientReducer::ready(std::span<const ReadyGradient> together) {
  return impl_->ready(together);
}

void GradientReducer::flush() { impl_->flush(); }
void GradientReducer::wait() { impl_->wait(); }
void GradientReducer::progress() { impl_->progress(); }

void GradientReducer::relearn_order() {
  impl_->finish_steps();
  const auto lock = impl_->step_.lock();
  impl_->step_.forget_order();
}

void GradientReducer::scale_residuals(float factor) { impl_->scale_residuals(factor); }
void GradientReducer::discard_step() { impl_->discard_step(); }

std::vector<std::byte> GradientReducer::save_state() const {
  return write_state(impl_->exact_state());
}

std::vector<std::byte> GradientReducer::save_portable_state() const {
  return write_state(impl_->portable_state());
}

void GradientReducer::load_state(std::span<const std::byte> state) {
  impl_->load(read_state(state));
}

ReducerStatistics GradientReducer::statistics() const { return impl_->total_statistics(); }
std::vector<ReducerStatistics> GradientReducer::parameter_statistics() const {
  return impl_->parameter_statistics();
}
void GradientReducer::reset_statistics() { impl_->reset_statistics(); }
bool GradientReducer::settled() const { return impl_->settled(); }
std::string GradientReducer::explain() const { return impl_->explain(); }
std::string GradientReducer::explain_choice() const { return impl_->explain_choice(); }

}  // namespace tersor
