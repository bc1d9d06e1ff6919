// The public functions of GradientReducer. See impl.h for the other files.
#include "comm/reducer/impl.h"

#include <tersor/reducer.h>

#include <cstdint>
#include <optional>
#include <utility>

namespace tersor {
namespace {

void check_options(const ReducerOptions& options, int ranks) {
  if (options.residual_dtype != Dtype::kF32 && options.residual_dtype != Dtype::kBf16)
    throw InvalidArgumentError("residual_dtype is " +
                               std::string(dtype_name(options.residual_dtype)) +
                               ": give f32 or bf16");
  if (options.weighted == Weighted::kOn && options.reduction == Reduction::kSum)
    throw InvalidArgumentError("weighted needs a mean: set reduction to mean");
  if (options.elastic == Elastic::kOn && options.tuner != nullptr)
    throw InvalidArgumentError(
        "an elastic reducer makes its own Tuner, because a given Tuner keeps lost ranks: leave "
        "tuner out");
  if (reinterpret_cast<std::uintptr_t>(options.stream.handle) == 2)  // cudaStreamPerThread
    throw InvalidArgumentError(
        "stream is CUDA's per-thread default stream, which is another stream in the reducer's own "
        "thread: give another stream");
  if (options.min_ranks != 0 && options.elastic == Elastic::kOff)
    throw InvalidArgumentError("min_ranks is " + std::to_string(options.min_ranks) +
                               ", but the reducer is not elastic: set elastic too");
  if (options.min_ranks < 0 || options.min_ranks > ranks)
    throw InvalidArgumentError("min_ranks is " + std::to_string(options.min_ranks) +
                               ": give 1 to " + std::to_string(ranks) +
                               ", the number of ranks, or 0 for the default");
  if (!options.hosts.empty()) check_hosts(options.hosts, ranks);
}

// Null on a single host, where the host's own codec applies to all ranks. Also null if each host
// has one rank, because the ranks then exchange directly.
std::unique_ptr<Hierarchy> find_hierarchy(Transport& channel, const ReducerOptions& options,
                                          CodecPolicy& policy) {
  if (options.algorithm != Algorithm::kHierarchical) return nullptr;
  Hosts hosts = find_hosts(channel, options.hosts, options.host_codec, options.error_growth);
  if (hosts.single_host) policy.set_single_host(std::move(hosts.codec));
  if (!hosts.groups) return nullptr;
  if (options.measure_error == MeasureError::kOn)
    throw InvalidArgumentError(
        "measure_error does not support algorithm hierarchical: choose another algorithm");
  return std::make_unique<Hierarchy>(channel, *std::move(hosts.groups), std::move(hosts.codec));
}

ReducerOptions with_chunk_count(ReducerOptions options, const Transport& transport) {
  options.chunk_count = chunk_count_of(transport, options.chunk_count);
  return options;
}

}  // namespace

GradientReducer::Impl::Impl(Transport& transport, ReducerOptions requested)
    : options_(with_chunk_count(std::move(requested), transport)),
      parameters_(options_, context_),
      policy_(parameters_),
      trace_(options_.trace.empty()
                 ? nullptr
                 : std::make_unique<ReducerTrace>(options_.trace, transport.rank(), parameters_)),
      transport_(transport),
      channel_(transport.channel()),
      threads_(options_.threads),
      gradients_(parameters_, weights_) {
  check_options(options_, transport.ranks());
  policy_.find_tuner(transport);
  if (policy_.automatic() && !channel_->traits().queues) control_ = transport.channel();
  handle_->reducer = this;
  context_.transport = channel_.get();
  context_.ranks.rank = channel_->rank();
  context_.ranks.count = channel_->ranks();
  context_.ranks.grid = Grid::of(options_.dims, context_.ranks.count, options_.error_growth);
  context_.call.name = "gradient reducer";
  context_.call.seed = options_.seed;
  context_.call.reduction = options_.reduction;
  context_.call.checksum = options_.checksum;
  context_.call.timeout = options_.timeout;
  context_.threads = &threads_;
  hierarchy_ = find_hierarchy(*channel_, options_, policy_);
  context_.ranks.hierarchy = hierarchy_.get();
  context_.trace = trace_ == nullptr ? nullptr : &trace_->sender;
}

void GradientReducer::Impl::add(std::string name, const GradientShape& shape, ValueSpan gradient) {
  const LockedStep step = between_steps("add(\"" + name + "\")");
  check_unweighted("add(\"" + name + "\")");
  if (policy_.was_captured())
    throw InvalidArgumentError("add \"" + name +
                               "\" before a step is captured: a captured graph cannot change");
  const bool scatters = shape.collective == Collective::kReduceScatter;
  if (scatters && options_.elastic == Elastic::kOn)
    throw InvalidArgumentError(
        "\"" + name +
        "\" is reduce-scattered: an elastic reducer supports only all-reduced "
        "parameters");
  ExchangeParameter param = parameters_.make_param(name, shape);
  ReducerParameter own{.name = std::move(name),
                       .count = shape.count,
                       .order = shape.order,
                       .per_step_gradient = scatters || gradient.count() != shape.count,
                       .gradient = gradient};
  policy_.choose(own, param);
  parameters_.add(std::move(own), std::move(param));
  if (device_ < 0 && shape.memory == Memory::kDevice) device_ = kernels::current_device();
}

bool ReducerHandle::test() const { return OnDevice(*shared_->reducer)->test(parameter_, step_); }
void ReducerHandle::wait() const { OnDevice(*shared_->reducer)->wait_for(parameter_, step_); }

GradientReducer::GradientReducer(Transport& transport, ReducerOptions options)
    : impl_(std::make_unique<Impl>(transport, std::move(options))) {
  const ReducerOptions& own = impl_->options_;
  if (own.elastic == Elastic::kOn)
    impl_->survivors_ = std::make_shared<Survivors>(transport, own.min_ranks);
}

// Freeing memory waits for queued work of the current device only.
GradientReducer::~GradientReducer() {
  std::optional<kernels::DeviceScope> scope;
  try {
    scope.emplace(impl_->device_);
  } catch (const Error&) {  // ignored: no work runs on a device with an error
  }
  impl_.reset();
}

void GradientReducer::add(std::string name, ValueSpan gradient, std::size_t rows,
                          std::size_t columns) {
  OnDevice(*impl_)->add(std::move(name),
                        {gradient.count(), gradient.dtype(), gradient.memory(), rows, columns},
                        gradient);
}

void GradientReducer::add(std::string name, const GradientShape& shape) {
  OnDevice(*impl_)->add(std::move(name), shape, {});
}

ReducerHandle GradientReducer::ready(std::string_view name) {
  return OnDevice(*impl_)->ready(
      {impl_->parameters_.index_of(name), std::nullopt, Contribution::kGradient});
}

ReducerHandle GradientReducer::ready(std::string_view name, ValueSpan gradient,
                                     Contribution contribution) {
  return ready(name, gradient, {}, contribution);
}

ReducerHandle GradientReducer::ready(std::string_view name, ValueSpan gradient, ValueSpan shard,
                                     Contribution contribution) {
  return OnDevice(*impl_)->ready(
      {impl_->parameters_.index_of(name), Gradients::Spans{gradient, shard}, contribution});
}

std::vector<ReducerHandle> GradientReducer::ready(std::span<const ReadyGradient> together) {
  std::vector<Impl::Ready> all;
  for (const ReadyGradient& one : together)
    all.push_back({impl_->parameters_.index_of(one.name), Gradients::Spans{one.gradient, one.shard},
                   one.contribution});
  std::vector<ReducerHandle> handles(all.size());
  OnDevice(*impl_)->ready(all, handles);
  return handles;
}

void GradientReducer::flush() { OnDevice(*impl_)->flush(); }
void GradientReducer::wait() { OnDevice(*impl_)->wait(); }
void GradientReducer::progress() { OnDevice(*impl_)->progress(); }
void GradientReducer::resume() { impl_ = OnDevice(*impl_)->resumed(); }
void GradientReducer::check_faults() { OnDevice(*impl_)->check_faults(); }
Transport& GradientReducer::transport() const { return impl_->transport_; }

bool GradientReducer::settled() const {
  const auto lock = impl_->step_.lock();
  return impl_->policy_.settled(impl_->sender_ != nullptr);
}

}  // namespace tersor
