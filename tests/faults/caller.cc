// Implements the calls of caller.h. What they have to yield: expected.cc.
#include "tests/faults/caller.h"

#include <tersor/collectives.h>

#include <algorithm>
#include <string>
#include <utility>

#include "kernels/scalar/convert.h"

namespace tersor::faults {
namespace {

/// Values of any gradient's type, from and to f32.
class Typed {
 public:
  Typed(const Values& values, Dtype dtype) : Typed(values.size(), dtype) {
    visit([&](auto typed) {
      using T = typename decltype(typed)::value_type;
      std::transform(values.begin(), values.end(), typed.begin(),
                     [](float value) { return kernels::from_f32<T>(value); });
    });
  }
  Typed(std::size_t count, Dtype dtype)
      : bytes_(count * dtype_bytes(dtype)), count_(count), dtype_(dtype) {}

  ValueSpan span() { return {bytes_.data(), count_, dtype_}; }
  ConstByteSpan bytes() const { return bytes_; }

  Values values() {
    Values values(count_);
    visit([&](auto typed) {
      std::transform(typed.begin(), typed.end(), values.begin(),
                     [](auto value) { return kernels::to_f32(value); });
    });
    return values;
  }

  void write(std::size_t first, ConstByteSpan from) {
    std::copy(from.begin(), from.end(),
              bytes_.begin() + static_cast<std::ptrdiff_t>(first * dtype_bytes(dtype_)));
  }

 private:
  template <typename Visitor>
  void visit(Visitor&& visitor) {
    visit_gradient_dtype(dtype_, [&](auto kind) { visitor(span().template as<decltype(kind)>()); });
  }

  std::vector<std::byte> bytes_;
  std::size_t count_;
  Dtype dtype_;
};

CollectiveOptions options_of(const Scenario& scenario, const Step& step) {
  return {.codec = step.codec,
          .reduction = step.reduction,
          .algorithm = step.algorithm,
          .dims = step.dims,
          .chunk_count = std::size_t{1} << 16,  // several chunks, where a gradient is long
          .timeout = scenario.timeout};
}

/// Everybody's bytes in rank order; `own` stands for this rank's.
Values collect(const Handle& handle, const Transport& transport, const Step& step,
               ConstByteSpan own) {
  Typed all(step.count * static_cast<std::size_t>(transport.ranks()), step.dtype);
  for (int rank = 0; rank < transport.ranks(); ++rank)
    all.write(step.count * static_cast<std::size_t>(rank),
              rank == transport.rank() ? own : handle.received(rank));
  return all.values();
}

/// Of what a collective does not leave in its input.
std::size_t result_count(const Step& step, const Transport& transport) {
  const bool to_root = step.work == Work::kReduce || step.work == Work::kGather;
  if (to_root && transport.rank() != step.root) return 0;
  const bool of_all = step.work == Work::kAllgather || step.work == Work::kGather;
  return of_all ? step.count * static_cast<std::size_t>(transport.ranks()) : step.count;
}

std::vector<ValueSpan> even_parts(ValueSpan values, std::size_t ranks) {
  std::vector<ValueSpan> parts;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const std::size_t first = values.count() * rank / ranks;
    parts.push_back(values.subspan(first, values.count() * (rank + 1) / ranks - first));
  }
  return parts;
}

Values exchange(Transport& transport, const Operation& operation, const Step& step,
                const Typed& input) {
  const std::size_t bytes = step.count * dtype_bytes(step.dtype);
  const auto ranks = static_cast<std::size_t>(transport.ranks());
  std::vector<ConstByteSpan> sends;
  for (std::size_t rank = 0; rank < ranks; ++rank)
    sends.push_back(input.bytes().subspan(rank * bytes, bytes));
  Handle handle = transport.all_to_all(operation, sends, std::vector<std::size_t>(ranks, bytes));
  handle.wait_synchronize();
  return collect(handle, transport, step, sends[static_cast<std::size_t>(transport.rank())]);
}

Values pass_on(Transport& transport, const Operation& operation, const Step& step,
               const Typed& input) {
  const int ranks = transport.ranks();
  const int next = (transport.rank() + 1) % ranks;
  const int before = (transport.rank() + ranks - 1) % ranks;
  Handle coming = transport.receive(operation, before, input.bytes().size());
  Handle going = transport.send(operation, next, input.bytes());
  coming.wait_synchronize();
  going.wait_synchronize();
  Typed received(step.count, step.dtype);
  received.write(0, coming.received(before));
  return received.values();
}

Values combine(Transport& transport, const Operation& operation, Work work, Typed& input) {
  const auto parts = even_parts(input.span(), static_cast<std::size_t>(transport.ranks()));
  Handle handle =
      work == Work::kSum ? transport.sum(operation, parts) : transport.maximum(operation, parts);
  handle.wait_synchronize();
  return input.values();
}

}  // namespace

Caller::Caller(const Scenario& scenario, Transport& transport)
    : scenario_(scenario), transport_(transport) {}

Caller::~Caller() = default;

Values Caller::call(std::size_t index, Mistake mistake) {
  Step step = scenario_.steps[index];
  const Values input = input_of(scenario_, index, transport_.rank());
  if (step.work == Work::kReducerStep) return call_reducer(input, mistake);
  if (mistake == Mistake::kRefused && is_raw(step.work))
    transport_.send({.name = work_name(step.work)}, transport_.rank(), {});  // to itself
  if (mistake == Mistake::kRefused) step.codec = "int9";
  if (mistake == Mistake::kOtherArguments) {
    step = with_other_arguments(step, scenario_.fault.choice);
    Scenario other = scenario_;
    other.steps[index] = step;
    const Values other_input = input_of(other, index, transport_.rank());
    return is_raw(step.work) ? call_raw(step, other_input) : call_collective(step, other_input);
  }
  return is_raw(step.work) ? call_raw(step, input) : call_collective(step, input);
}

Values Caller::call_collective(const Step& step, const Values& input) {
  const CollectiveOptions options = options_of(scenario_, step);
  Typed values(input, step.dtype);
  Typed result(result_count(step, transport_), step.dtype);
  switch (step.work) {
    case Work::kAllreduce:
      allreduce(transport_, values.span(), options);
      return values.values();
    case Work::kBroadcast:
      broadcast(transport_, values.span(), step.root, options);
      return values.values();
    case Work::kReduceScatter:
      reduce_scatter(transport_, values.span(), result.span(), options);
      break;
    case Work::kReduce:
      reduce(transport_, values.span(), result.span(), step.root, options);
      break;
    case Work::kGather:
      gather(transport_, values.span(), result.span(), step.root, options);
      break;
    case Work::kScatter:
      scatter(transport_, values.span(), result.span(), step.root, options);
      break;
    default:
      allgather(transport_, values.span(), result.span(), options);
  }
  return result.values();
}

Values Caller::call_raw(const Step& step, const Values& input) {
  const Operation operation{.name = work_name(step.work),
                            .signature = step.signature,
                            .tag = transport_.reserve_tags(1),
                            .timeout = scenario_.timeout};
  Typed values(input, step.dtype);
  switch (step.work) {
    case Work::kAllGather: {
      Handle handle = transport_.all_gather(operation, values.bytes(), values.bytes().size());
      handle.wait_synchronize();
      return collect(handle, transport_, step, values.bytes());
    }
    case Work::kExchange:
      return exchange(transport_, operation, step, values);
    case Work::kPass:
      return pass_on(transport_, operation, step, values);
    case Work::kBarrier:
      transport_.barrier(operation).wait_synchronize();
      return {};
    default:
      return combine(transport_, operation, step.work, values);
  }
}

void Caller::make_reducer(Mistake mistake) {
  const Trainer& trainer = scenario_.trainer;
  ReducerOptions options{.codec = trainer.codec};
  options.progress = trainer.progress;
  options.chunk_count = std::size_t{1} << 16;
  options.timeout = scenario_.timeout;
  reducer_ = std::make_unique<GradientReducer>(transport_, options);
  const std::string name = mistake == Mistake::kOtherArguments ? "weight" : "layer";
  for (const std::size_t count : trainer.counts) gradients_.emplace_back(count);
  for (std::size_t i = 0; i < gradients_.size(); ++i)  // half of them are matrices
    reducer_->add(name + std::to_string(i), gradients_[i], i % 2 == 0 ? gradients_[i].size() : 0,
                  i % 2 == 0 ? 2 : 0);
}

// The backward pass: the last parameter is ready first.
Values Caller::call_reducer(const Values& input, Mistake mistake) {
  if (reducer_ == nullptr) make_reducer(mistake);
  const std::string name = mistake == Mistake::kOtherArguments ? "weight" : "layer";
  std::size_t last = input.size();
  for (std::size_t i = gradients_.size(); i-- > 0;) {
    last -= gradients_[i].size();
    std::copy_n(input.begin() + static_cast<std::ptrdiff_t>(last), gradients_[i].size(),
                gradients_[i].begin());
    if (i != 0 || mistake != Mistake::kRefused) reducer_->ready(name + std::to_string(i));
  }
  reducer_->wait();
  Values all;
  for (const Values& gradient : gradients_) all.insert(all.end(), gradient.begin(), gradient.end());
  return all;
}

}  // namespace tersor::faults
