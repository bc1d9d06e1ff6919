#include <tersor/sending.h>

#include "comm/calls/arguments.h"
#include "comm/collectives/bind.h"
#include "comm/collectives/chunk.h"
#include "comm/collectives/pipeline.h"
#include "comm/collectives/planner.h"

#include <algorithm>
#include <deque>
#include <exception>
#include <string>
#include <utility>

namespace tersor {
namespace {

void check_point_to_point(const Transport& transport, const ConstValueSpan& values, int peer,
                          const CollectiveOptions& options, std::string_view operation) {
  reject_auto_codec(options, operation);
  reject_feedback(options, operation);
  check_span(transport, values, "the values");
  if (peer < 0 || peer >= transport.ranks() || peer == transport.rank())
    throw InvalidArgumentError(std::string(operation) + " on rank " +
                               std::to_string(transport.rank()) + ": peer is " +
                               std::to_string(peer) + ": give another rank from 0 to " +
                               std::to_string(transport.ranks() - 1));
  if (values.memory() == Memory::kDevice && transport.traits().queues)
    throw InvalidArgumentError(
        std::string(operation) +
        ": over this transport all ranks take part in each transfer of device "
        "memory: call all_to_all on all ranks");
}

}  // namespace

struct Sending::State {
  State(Transport& of, std::unique_ptr<PreparedCall> message)
      : transport(of), prepared(std::move(message)) {}

  Transport& transport;
  std::unique_ptr<PreparedCall> prepared;
  std::deque<ChunkTask> tasks;  ///< messages under way, in sending order

  /// Starts all messages, in sending order. Encoding a message overlaps with sending the previous
  /// message.
  void begin(const CollectiveOptions& options, StreamView stream) {
    bind_call(*prepared, transport, options, stream);
    if (prepared->context.on_device()) transport.begin(bracket_of(prepared->context));
    guard([&] {
      for (const ChunkPlan& chunk : prepared->chunks) {
        tasks.emplace_back().start(prepared->context, chunk, kUnorderedTag);
        tasks.back().advance();
      }
    });
  }

  void advance() {
    while (!tasks.empty() && tasks.front().can_advance()) {
      tasks.front().advance();
      if (tasks.front().done()) tasks.pop_front();
    }
  }

  /// Runs `work`. After an exception, no message is under way.
  template <typename Work>
  void guard(const Work& work) try {
    work();
  } catch (const TransportError&) {
    tasks.clear();
    throw;
  } catch (const std::exception& error) {
    tasks.clear();
    abort(error);
    throw;
  }

  /// Ends the peer's wait for this rank. Isolated channels refuse `abort`; there, the peer waits
  /// for its timeout.
  void abort(const std::exception& error) {
    try {
      transport.abort(error.what());
    } catch (const InvalidArgumentError&) {
    }
  }
};

namespace {

/// Values per message. Messages are short, because one end is idle during the first and the last
/// message. Messages are few, because each has a fixed cost. A device sends a single message.
std::size_t values_per_message(const PreparedCall& prepared) {
  constexpr std::size_t kMinCount = std::size_t{1} << 18, kMaxCount = std::size_t{1} << 20;
  constexpr std::size_t kTargetMessages = 16, kMaxMessages = 256;
  const std::size_t count = prepared.key.values.count;
  if (prepared.context.on_device()) return count;
  const std::size_t target = std::clamp(ceil_div(count, kTargetMessages), kMinCount, kMaxCount);
  return std::max(std::min(prepared.key.chunk_count, target), ceil_div(count, kMaxMessages));
}

/// Prepares the message of the only parameter.
std::unique_ptr<PreparedCall> prepare_message(Transport& transport, const ConstValueSpan& values,
                                              int from, int to, const CollectiveOptions& options) {
  HierarchyCache none;
  auto prepared = prepare(transport, make_key({transport, CallKind::kSend, values, {}}, options),
                          options, none);
  if (to == transport.rank()) prepared->context.call.name = "receive";
  const Group all = full_group(transport.rank(), transport.ranks());
  prepared->chunks =
      Planner(prepared->context)
          .cut_by(send_to(all, from, to), Exchange::kGather, values_per_message(*prepared));
  return prepared;
}

}  // namespace

Sending::Sending(std::unique_ptr<State> state) : state_(std::move(state)) {}
Sending::Sending(Sending&&) noexcept = default;

Sending& Sending::operator=(Sending&& other) noexcept {
  std::swap(state_, other.state_);
  return *this;
}

// An error here is reported by the next call, because the transport is then aborted.
Sending::~Sending() {
  if (state_ == nullptr || std::uncaught_exceptions() > 0) return;
  try {
    wait();
  } catch (const std::exception& error) {
    state_->abort(error);
  }
}

bool Sending::test() {
  state_->guard([&] { state_->advance(); });
  return state_->tasks.empty();
}

void Sending::wait() {
  while (!test()) state_->guard([&] { state_->transport.wait_activity(Clock::now() + kMaxWait); });
}

Sending send(Transport& transport, ConstValueSpan values, int peer,
             const CollectiveOptions& options, StreamView stream) {
  check_point_to_point(transport, values, peer, options, "send");
  Sending sending(std::make_unique<Sending::State>(
      transport, prepare_message(transport, values, transport.rank(), peer, options)));
  sending.state_->prepared->bindings.front().input = values;
  sending.state_->begin(options, stream);
  return sending;
}

Sending receive(Transport& transport, ValueSpan values, int peer, const CollectiveOptions& options,
                StreamView stream) {
  check_point_to_point(transport, values, peer, options, "receive");
  Sending receiving(std::make_unique<Sending::State>(
      transport, prepare_message(transport, values, peer, transport.rank(), options)));
  receiving.state_->prepared->bindings.front().output = values;
  receiving.state_->begin(options, stream);
  return receiving;
}

}  // namespace tersor
