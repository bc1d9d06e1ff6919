#include "comm/reducer/sender.h"

#include <tersor/wire.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "comm/transport/timeout.h"

namespace tersor {
namespace {

constexpr std::chrono::milliseconds kIdleWait{50};

// Returns rank 0's order. Throws WireError unless the order is a permutation of all parameters.
ReducerStep::Order parse_order(ConstByteSpan bytes, std::size_t parameters) {
  ReducerStep::Order order(bytes.size() / sizeof(std::uint32_t));
  if (!order.empty()) std::memcpy(order.data(), bytes.data(), order.size() * sizeof(order[0]));
  if (!is_permutation(order, parameters))
    throw WireError(
        "gradient reducer: rank 0's sending order is not a permutation of the parameters");
  return order;
}

LoadedState parse_state(ConstByteSpan bytes, int rank) {
  LoadedState state;
  if (bytes.size() < sizeof state)
    throw WireError("gradient reducer: rank " + std::to_string(rank) +
                    " sent no record of a loaded state");
  std::memcpy(&state, bytes.data(), sizeof state);
  return state;
}

using Bytes = std::optional<std::vector<std::byte>>;

template <typename T>
std::vector<std::byte> bytes_of(std::span<const T> values) {
  const auto bytes = std::as_bytes(values);
  return {bytes.begin(), bytes.end()};
}

double parse_samples(ConstByteSpan bytes, int rank) {
  double samples = -1;
  if (bytes.size() == sizeof samples) std::memcpy(&samples, bytes.data(), sizeof samples);
  if (std::isfinite(samples) && samples >= 0) return samples;
  throw WireError("gradient reducer: rank " + std::to_string(rank) +
                  "'s number of samples is negative or not finite");
}

}  // namespace

bool is_permutation(ReducerStep::Order order, std::size_t parameters) {
  std::ranges::sort(order);
  bool valid = order.size() == parameters;
  for (std::size_t i = 0; valid && i < parameters; ++i) valid = order[i] == i;
  return valid;
}

bool Sender::advance() {
  if (agree()) return true;
  if (states_.handle.valid()) return false;
  while (true) {
    LockedStep step = step_.lock();
    if (step->agreement_pending()) return true;  // requested since agree()
    const auto index = step->take_requested();
    if (!index) break;
    Message& message = messages_[*index];
    step.unlock();
    submit(*index, message);
  }
  return advance_commit() || pipeline_.advance();
}

// A fault found while no message is under way is reported in the reducer's name.
void Sender::advance_or_wait() {
  if (advance()) return;
  const bool idle = pipeline_.idle() && !samples_.handle.valid() && !states_.handle.valid() &&
                    !order_.handle.valid() && !commit_barrier_.valid();
  try {
    pipeline_.wait_activity(Clock::now() + kIdleWait);
  } catch (const TransportError& error) {
    if (!idle) throw;
    rethrow_as(std::string(context_.call.name) + ": " + error.what(), error);
  }
}

void Sender::submit(std::uint32_t index, Message& message) {
  if (!context_.queues) transport().begin(bracket());  // reports damaged frames of a device
  for (const ChunkPlan& chunk : message.bucket.chunks)
    pipeline_.submit(chunk, [this, index, &message] { chunk_done(index, message); });
}

void Sender::chunk_done(std::uint32_t index, Message& message) {
  if (--message.chunks_left != 0) return;
  message.chunks_left = message.bucket.chunks.size();
  LockedStep step = step_.lock();
  step->set_done(index);
  if (step->all_done() && !reducer_.commit_barrier) reducer_.complete(step);
}

// After the commit barrier, a rank knows that the step is committed, regardless of later faults.
// Returns true after progress.
bool Sender::advance_commit() {
  if (!reducer_.commit_barrier) return false;
  if (commit_barrier_.valid() && !commit_barrier_.test()) return false;
  LockedStep step = step_.lock();
  if (!step->all_done()) return false;
  if (std::exchange(commit_barrier_, {}).valid()) {
    reducer_.complete(step);
    return true;
  }
  step.unlock();
  commit_barrier_ = transport().barrier(context_.operation("gradient reducer (vote)"));
  return true;
}

template <typename Limit, typename Input>
bool Sender::exchange(PendingGather& one, std::string_view name, const Limit& limit,
                      const Input& input) {
  if (!one.handle.valid()) {
    LockedStep step = step_.lock();
    Bytes own = input(step);
    if (!own) return false;
    one.own = *std::move(own);
    one.handle = transport().all_gather(context_.operation(name), one.own, limit(step));
  }
  if (context_.queues) one.handle.wait_synchronize();
  return one.handle.test();
}

ConstByteSpan Sender::bytes_of_rank(const PendingGather& one, int rank) const {
  return rank == context_.ranks.rank ? ConstByteSpan(one.own) : one.handle.received(rank);
}

// Earlier steps are complete, so all ranks exchange at the same position between messages.
bool Sender::exchange_weights() {
  const auto input = [&](LockedStep& step) -> Bytes {
    const auto samples = step->closed() ? std::nullopt : weights_.take_unsent();
    return samples ? Bytes(bytes_of<double>({&*samples, 1})) : std::nullopt;
  };
  const auto limit = [](LockedStep&) { return sizeof(double); };
  if (!exchange(samples_, "gradient reducer (weights)", limit, input)) return false;
  std::vector<double> samples;
  for (int rank = 0; rank < context_.ranks.count; ++rank)
    samples.push_back(parse_samples(bytes_of_rank(samples_, rank), rank));
  samples_ = {};
  const LockedStep step = step_.lock();
  weights_.set_samples(context_.ranks.rank, samples);
  step->set_changed();
  return true;
}

void Sender::request_agreement(LockedStep& step, const LoadedState& loaded) {
  loaded_ = loaded;
  step->request_agreement();
}

// A rank without a loaded state has another signature.
bool Sender::compare_states() {
  const auto input = [&](LockedStep& step) -> Bytes {
    if (!step->agreement_pending()) return std::nullopt;
    std::vector<std::byte> own = bytes_of<LoadedState>({&loaded_, 1});
    const auto order = std::as_bytes(std::span(step->order()));
    if (context_.ranks.rank == 0) own.insert(own.end(), order.begin(), order.end());
    return own;
  };
  const auto limit = [&](LockedStep& step) { return sizeof loaded_ + order_bytes(step); };
  if (!exchange(states_, "gradient reducer (loaded state)", limit, input)) return false;
  std::vector<LoadedState> records;
  for (int rank = 0; rank < context_.ranks.count; ++rank)
    records.push_back(parse_state(bytes_of_rank(states_, rank), rank));
  try {
    check_same_state(records);
  } catch (const TransportError& error) {  // late ranks then raise the same error text
    transport().abort(error.what());
    throw;
  }
  const ConstByteSpan order = bytes_of_rank(states_, 0).subspan(sizeof(LoadedState));
  ReducerStep::Order agreed;
  if (!order.empty()) agreed = parse_order(order, context_.params.size());
  states_ = {};
  LockedStep step = step_.lock();
  const bool requested = !agreed.empty() && adopt_order(step, std::move(agreed));
  step->agree();
  if (requested) order_after_trainer();
  return true;
}

// Rank 0 sends the order of its `ready` calls in the first step.
bool Sender::exchange_order() {
  const auto input = [&](LockedStep& step) -> Bytes {
    if (!step->take_order_request()) return std::nullopt;
    if (context_.ranks.rank != 0) return std::vector<std::byte>();
    return bytes_of<std::uint32_t>(step->sequence());
  };
  const auto limit = [&](LockedStep& step) { return order_bytes(step); };
  if (!exchange(order_, "gradient reducer (order)", limit, input)) return false;
  ReducerStep::Order order = parse_order(bytes_of_rank(order_, 0), context_.params.size());
  order_ = {};
  LockedStep step = step_.lock();
  if (adopt_order(step, std::move(order))) order_after_trainer();
  return true;
}

std::uint32_t Sender::add_message(Bucket bucket) {
  const std::size_t chunks = bucket.chunks.size();
  messages_.push_back({std::move(bucket), chunks});
  return static_cast<std::uint32_t>(messages_.size() - 1);
}

bool Sender::adopt_order(LockedStep& step, ReducerStep::Order order) {
  messages_.clear();
  ReducerStep::Messages parameters;
  for (Bucket& bucket : reducer_.make_buckets(order)) {
    for (const ChunkPlan& chunk : bucket.chunks) pipeline_.prepare(chunk);
    parameters.push_back(bucket.params);
    add_message(std::move(bucket));
  }
  return step->set_order(std::move(order), std::move(parameters));
}

void Sender::drop_messages(LockedStep& step) {
  if (step->sending() != SendingOrder::kReadyOrder) {
    if (step->order_known()) adopt_order(step, step->order());
    return;
  }
  message_sets_.clear();
  messages_.clear();
  step->drop_messages();
}

const std::vector<std::uint32_t>& Sender::messages_of(LockedStep& step,
                                                      const ReducerStep::Order& together) {
  const auto [found, is_new] = message_sets_.try_emplace(together);
  if (!is_new) return found->second;
  for (Bucket& bucket : reducer_.make_buckets(together)) {
    Signature parameters;
    for (const std::uint32_t param : bucket.params) parameters.add(param);
    for (ChunkPlan& chunk : bucket.chunks)
      chunk.signature = context_.signature ^ parameters.value();
    found->second.push_back(step->add_message(bucket.params));
    add_message(std::move(bucket));
  }
  return found->second;
}

void Sender::fail(std::exception_ptr error) {
  pipeline_.drop();
  for (PendingGather* one : {&samples_, &states_, &order_})
    one->handle = {};  // the transport may still read this rank's bytes
  commit_barrier_ = {};
  try {
    std::rethrow_exception(error);
  } catch (const TransportError& cause) {
    error = reducer_.on_transport_error(cause);
  } catch (const std::exception& cause) {
    reducer_.on_local_error(cause);  // the other ranks would wait for this rank
  }
  step_.lock()->fail(std::move(error));
}

}  // namespace tersor
