// The sending side of a step, used by a single thread at a time: learns the order, passes requested
// messages to the pipeline, and reports received results.
#pragma once

#include "comm/collectives/pipeline.h"
#include "comm/reducer/buckets.h"
#include "comm/reducer/loading.h"
#include "comm/reducer/memory_backend.h"
#include "comm/reducer/step.h"
#include "comm/reducer/weights.h"

#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <vector>

namespace tersor {

/// True if `order` is a permutation of the numbers below `parameters`.
bool is_permutation(ReducerStep::Order order, std::size_t parameters);

class Sender {
 public:
  /// The reducer's functions called by the sender.
  struct Reducer {
    std::function<std::vector<Bucket>(const ReducerStep::Order& order)> make_buckets;
    std::function<void(LockedStep& step)> complete;
    /// Returns the exception to throw after a transport error. `on_local_error` is called after
    /// this rank's own error.
    std::function<std::exception_ptr(const TransportError&)> on_transport_error;
    std::function<void(const std::exception&)> on_local_error;
    bool commit_barrier = false;  ///< True if a step completes only after a commit barrier
  };

  /// All arguments must outlive the sender.
  Sender(SharedStep& step, ExchangeContext& context, MemoryBackend& backend, StepWeights& weights,
         Reducer reducer)
      : step_(step),
        context_(context),
        backend_(backend),
        weights_(weights),
        reducer_(std::move(reducer)),
        pipeline_(context) {}

  /// Does one piece of work. Returns false if all work waits for the network or the trainer.
  bool advance();
  /// Like `advance`, but waits for activity if there is no work.
  void advance_or_wait();
  /// Finishes all requested messages.
  void finish() { pipeline_.finish(); }
  /// Exchanges pending agreements: the step's weights, equality of loaded states, and the sending
  /// order. Returns true if one agreement is reached now.
  bool agree() { return exchange_weights() || compare_states() || exchange_order(); }
  /// Makes ranks compare their loaded states before the step's first message, and use rank 0's
  /// sending order.
  void request_agreement(LockedStep& step, const LoadedState& loaded);

  /// Makes messages and buffers for an order. Returns true if messages are requested.
  bool adopt_order(LockedStep& step, ReducerStep::Order order);
  /// Drops all messages between two steps, after codecs or algorithms changed.
  void drop_messages(LockedStep& step);
  /// True if the number of sets of parameters with messages exceeds the number needed for steps
  /// with equal sets.
  bool has_many_messages() const { return message_sets_.size() > 64 + 2 * context_.params.size(); }
  /// The messages of parameters that become ready together in this order.
  const std::vector<std::uint32_t>& messages_of(LockedStep& step,
                                                const ReducerStep::Order& together);
  /// Orders later messages after the work queued by the trainer until now.
  void order_after_trainer() { backend_.order_after_trainer(); }

  /// Ends sending, and announces the error to the other ranks.
  void fail(std::exception_ptr error);
  /// Runs `work`. An exception ends the reducer and is rethrown.
  template <typename Work>
  void run_or_fail(const Work& work) try {
    work();
  } catch (...) {
    fail(std::current_exception());
    step_.lock()->rethrow();
  }

  /// The operation that brackets work on a device.
  Operation bracket() const { return bracket_of(context_); }
  SharedStep& step() const { return step_; }
  Transport& transport() const { return *context_.transport; }
  const MemoryBackend& backend() const { return backend_; }
  std::size_t messages() const { return messages_.size(); }
  double wire_seconds() const { return pipeline_.wire_seconds(); }

 private:
  struct Message {
    Bucket bucket;
    std::size_t chunks_left;
  };

  /// This rank's bytes, and the exchange of all ranks' bytes.
  struct PendingGather {
    std::vector<std::byte> own = {};
    Handle handle = {};
  };

  /// Returns true once all ranks' bytes have arrived. The exchange begins if `input(step)` returns
  /// this rank's bytes. `limit(step)` returns the maximum number of bytes.
  template <typename Limit, typename Input>
  bool exchange(PendingGather& one, std::string_view name, const Limit& limit, const Input& input);
  /// Before a step, the trainer may add parameters under the step's lock.
  std::size_t order_bytes(const LockedStep&) const {
    return context_.params.size() * sizeof(std::uint32_t);
  }
  ConstByteSpan bytes_of_rank(const PendingGather& one, int rank) const;
  bool exchange_weights();
  bool compare_states();
  bool exchange_order();
  bool advance_commit();
  void submit(std::uint32_t index, Message& message);
  void chunk_done(std::uint32_t index, Message& message);
  std::uint32_t add_message(Bucket bucket);

  SharedStep& step_;
  ExchangeContext& context_;
  MemoryBackend& backend_;
  StepWeights& weights_;
  Reducer reducer_;
  std::deque<Message> messages_;  ///< grows under the step's lock; elements belong to the driver
  std::map<ReducerStep::Order, std::vector<std::uint32_t>> message_sets_;
  Pipeline pipeline_;
  PendingGather samples_, states_, order_;  ///< rank 0's state ends with the order
  LoadedState loaded_;
  Handle commit_barrier_;
};

}  // namespace tersor
