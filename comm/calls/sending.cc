// See <tersor/sending.h>.
#include <tersor/sending.h>

#include "comm/calls/arguments.h"
#include "comm/collectives/bind.h"
#include "comm/collectives/chunk.h"
#include "comm/collectives/pipeline.h"
#include "comm/collectives/planner.h"

#include <chrono>
#include <exception>
#include <string>
#include <utility>

namespace tersor {
namespace {

void check_between(const Transport& transport, const ConstValueSpan& values, int peer,
                   const CollectiveOptions& options, std::string_view operation) {
  refuse_automatic(options, operation);
  refuse_feedback(options, operation);
  check_span(transport, values, "what is sent");
  if (peer < 0 || peer >= transport.ranks() || peer == transport.rank())
    throw InvalidArgument(std::string(operation) + " on rank " + std::to_string(transport.rank()) +
                          ": " + std::to_string(peer) + " is no other of " +
                          std::to_string(transport.ranks()) + " ranks");
  if (values.memory() == Memory::kDevice && transport.traits().queues)
    throw InvalidArgument(std::string(operation) +
                          ": over this transport all ranks take part in everything that moves "
                          "device memory: call all_to_all on all of them");
}

}  // namespace

struct Sending::State {
  State(Transport& of, std::unique_ptr<Prepared> message)
      : transport(of), prepared(std::move(message)) {}

  Transport& transport;
  std::unique_ptr<Prepared> prepared;
  ChunkTask task;

  /// Has the only chunk begin.
  void begin(const CollectiveOptions& options, StreamView stream) {
    bind_call(*prepared, transport, options, stream);
    if (prepared->context.on_device()) transport.begin(bracket_of(prepared->context));
    guard([&] {
      task.start(prepared->context, prepared->chunks.front(), kUnorderedTag);
      task.advance();
    });
  }

  /// Where `work` throws nothing is under way any more.
  template <typename Work>
  void guard(const Work& work) try {
    work();
  } catch (const TransportError& error) {
    task.drop();
    throw TransportError(explained(error.what(), prepared->fields));
  } catch (const std::exception& error) {
    task.drop();
    transport.poison(error.what());  // the other end would wait for us
    throw;
  }
};

namespace {

/// A message of the only slot, all of it in one chunk.
std::unique_ptr<Prepared> prepare_message(Transport& transport, const ConstValueSpan& values,
                                          int from, int to, const CollectiveOptions& options) {
  KnownHierarchy none;
  auto prepared =
      prepare(transport, make_key({transport, Kind::kSend, values, {}}, options), options, none);
  if (to == transport.rank()) prepared->context.name = "receive";
  const Party all = everybody(transport.rank(), transport.ranks());
  prepared->chunks =
      Planner(prepared->context).cut_by(send_to(all, from, to), Exchange::kGather, values.count());
  return prepared;
}

}  // namespace

Sending::Sending(std::unique_ptr<State> state) : state_(std::move(state)) {}
Sending::Sending(Sending&&) noexcept = default;

Sending& Sending::operator=(Sending&& other) noexcept {
  std::swap(state_, other.state_);
  return *this;
}

// Whoever lets an unfinished one go learns of an error in the next call: the transport is poisoned.
Sending::~Sending() {
  if (state_ == nullptr || std::uncaught_exceptions() > 0) return;
  try {
    wait();
  } catch (const std::exception& error) {
    state_->transport.poison(error.what());
  }
}

bool Sending::test() {
  state_->guard([&] {
    if (state_->task.can_advance()) state_->task.advance();
  });
  return state_->task.done();
}

void Sending::wait() {
  while (!test())
    state_->guard([&] { state_->transport.wait_activity(Clock::now() + kLongestWait); });
}

Sending send(Transport& transport, ConstValueSpan values, int peer,
             const CollectiveOptions& options, StreamView stream) {
  check_between(transport, values, peer, options, "send");
  Sending sending(std::make_unique<Sending::State>(
      transport, prepare_message(transport, values, transport.rank(), peer, options)));
  sending.state_->prepared->slots.front().input = values;
  sending.state_->begin(options, stream);
  return sending;
}

Sending receive(Transport& transport, ValueSpan values, int peer, const CollectiveOptions& options,
                StreamView stream) {
  check_between(transport, values, peer, options, "receive");
  Sending receiving(std::make_unique<Sending::State>(
      transport, prepare_message(transport, values, peer, transport.rank(), options)));
  receiving.state_->prepared->slots.front().output = values;
  receiving.state_->begin(options, stream);
  return receiving;
}

}  // namespace tersor
