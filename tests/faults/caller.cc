// Implements the calls of caller.h. Expected results: expected.cc.
#include "tests/faults/caller.h"

#include <tersor/collectives.h>
#include <tersor/sending.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

#include "kernels/scalar/convert.h"

namespace tersor::faults {
namespace {

/// Values of any gradient dtype, converted from and to f32.
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
          .hosts = step.hosts,
          .dims = step.dims,
          .chunk_count = std::size_t{1} << 16,  // several chunks for long gradients
          .timeout = scenario.timeout};
}

/// The bytes of all ranks in rank order; `own` are the bytes of this rank.
Values collect(const Handle& handle, const Transport& transport, const Step& step,
               ConstByteSpan own) {
  Typed all(step.count * static_cast<std::size_t>(transport.ranks()), step.dtype);
  for (int rank = 0; rank < transport.ranks(); ++rank)
    all.write(step.count * static_cast<std::size_t>(rank),
              rank == transport.rank() ? own : handle.received(rank));
  return all.values();
}

/// The number of rows received from each rank.
std::vector<std::size_t> received_rows(const Step& step, const Transport& transport) {
  std::vector<std::size_t> rows;
  for (const auto& sent : step.rows)
    rows.push_back(sent[static_cast<std::size_t>(transport.rank())]);
  return rows;
}

/// The number of output values of a collective; 0 for in-place collectives.
std::size_t result_count(const Step& step, const Transport& transport) {
  if (!step.rows.empty()) {
    const auto rows = received_rows(step, transport);
    return step.count * std::accumulate(rows.begin(), rows.end(), std::size_t{0});
  }
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

/// Receives a message from each sending rank and sends a message to each receiving rank. A message
/// contains all rows.
void send_and_receive(Transport& transport, const Step& step, ConstValueSpan values,
                      ValueSpan result, const CollectiveOptions& options) {
  const auto rank = static_cast<std::size_t>(transport.rank());
  std::vector<Sending> sendings;
  std::size_t first = 0;
  for (std::size_t from = 0; from < step.rows.size(); ++from) {
    const std::size_t count = step.rows[from][rank] * step.count;
    if (count != 0)
      sendings.push_back(
          receive(transport, result.subspan(first, count), static_cast<int>(from), options));
    first += count;
  }
  for (std::size_t to = 0, at = 0; to < step.rows.size(); ++to) {
    const std::size_t count = step.rows[rank][to] * step.count;
    if (count != 0)
      sendings.push_back(send(transport, values.subspan(at, count), static_cast<int>(to), options));
    at += count;
  }
  for (Sending& sending : sendings) sending.wait();
}

bool same_bytes(ConstByteSpan one, ConstByteSpan other) { return std::ranges::equal(one, other); }

}  // namespace

Caller::Caller(const Scenario& scenario, Transport& transport)
    : scenario_(scenario), transport_(transport) {}

Caller::~Caller() = default;

Values Caller::call(std::size_t index, Mistake mistake) {
  Scenario scenario = scenario_;
  Step& step = scenario.steps[index];
  if (mistake == Mistake::kOtherArguments && step.work != Work::kReducerStep)
    step = with_other_arguments(step, scenario);
  const Values input = input_of(scenario, index, transport_.rank());
  if (step.work == Work::kReducerStep) return call_reducer(input, mistake);
  if (mistake == Mistake::kRefused && is_raw(step.work))
    transport_.send({.name = work_name(step.work)}, transport_.rank(), {});  // to itself
  if (mistake == Mistake::kRefused) step = with_refused_arguments(step, scenario);
  return is_raw(step.work) ? call_raw(step, input) : call_collective(step, input);
}

// A refused call must not change anything.
Values Caller::call_collective(const Step& step, const Values& input) {
  Typed values(input, step.dtype), result(result_count(step, transport_), step.dtype);
  const Typed values_before = values, result_before = result;
  try {
    call_collective(step, values.span(), result.span());
  } catch (const InvalidArgumentError&) {
    if (!same_bytes(values.bytes(), values_before.bytes()) ||
        !same_bytes(result.bytes(), result_before.bytes()))
      throw std::logic_error("a call that was refused has changed something");
    throw;
  }
  const bool in_place = step.work == Work::kAllreduce || step.work == Work::kBroadcast;
  return in_place ? values.values() : result.values();
}

void Caller::call_collective(const Step& step, ValueSpan values, ValueSpan result) {
  const CollectiveOptions options = options_of(scenario_, step);
  switch (step.work) {
    case Work::kAllreduce:
      return allreduce(transport_, values, options);
    case Work::kBroadcast:
      return broadcast(transport_, values, step.root, options);
    case Work::kReduceScatter:
      return reduce_scatter(transport_, values, result, options);
    case Work::kReduce:
      return reduce(transport_, values, result, step.root, options);
    case Work::kGather:
      return gather(transport_, values, result, step.root, options);
    case Work::kScatter:
      return scatter(transport_, values, result, step.root, options);
    case Work::kAllToAll:
      return all_to_all(transport_, values, result, step.count,
                        {.sent = step.rows[static_cast<std::size_t>(transport_.rank())],
                         .received = received_rows(step, transport_)},
                        options);
    case Work::kSend:
      return send_and_receive(transport_, step, values, result, options);
    default:
      return allgather(transport_, values, result, options);
  }
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

// Like a backward pass, the last parameter is ready first.
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
