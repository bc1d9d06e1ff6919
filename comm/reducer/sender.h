// The sending side of a step, for one thread at a time: learns the order, gives what was requested
// to the pipeline, and tells what is back.
#pragma once

#include "comm/collectives/pipeline.h"
#include "comm/reducer/buckets.h"
#include "comm/reducer/loading.h"
#include "comm/reducer/residence.h"
#include "comm/reducer/step.h"
#include "comm/reducer/weights.h"

#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <vector>

namespace tersor {

/// Whether an order is a permutation of so many parameters.
bool is_order(ReducerStep::Order order, std::size_t parameters);

class Sender {
 public:
  /// What it asks of the reducer.
  struct Reducer {
    std::function<std::vector<Bucket>(const ReducerStep::Order& order)> make_buckets;
    std::function<void(LockedStep& step)> complete;
    /// What is thrown for an error of the transport, or for this rank's own.
    std::function<std::exception_ptr(const TransportError&)> lost;
    std::function<void(const std::exception&)> gave_up;
    bool votes = false;  ///< a step is complete once all ranks say that they have all of it
  };

  /// All of them outlive the sender.
  Sender(SharedStep& step, ExchangeContext& context, Residence& residence, StepWeights& weights,
         Reducer reducer)
      : step_(step),
        context_(context),
        residence_(residence),
        weights_(weights),
        reducer_(std::move(reducer)),
        pipeline_(context) {}

  /// One piece of work; false where all waits for the wire or the trainer.
  bool advance();
  /// Where there is none, waits until something may have moved.
  void advance_or_wait();
  /// To the end of what was requested.
  void finish() { pipeline_.finish(); }
  /// What is agreed on beside values, where that is asked for: a step's weights, that ranks loaded
  /// equal states, and in which order gradients go. True where one of them is known now.
  bool agree() { return learn_weights() || compare_states() || learn_order(); }
  /// Before the first message of this step, ranks compare the states that they loaded, and take
  /// rank 0's order of sending.
  void want_agreement(LockedStep& step, const LoadedState& loaded);

  /// Messages and buffers for an order. True where some are requested.
  bool adopt_order(LockedStep& step, ReducerStep::Order order);
  /// Between two steps: parameters go another way from now on, messages are made anew.
  void forget_messages(LockedStep& step);
  /// True if messages of more sets exist than steps with the same sets of parameters have.
  bool has_many_messages() const { return together_.size() > 64 + 2 * context_.slots.size(); }
  /// The messages of parameters that become ready together in this order.
  const std::vector<std::uint32_t>& messages_of(LockedStep& step,
                                                const ReducerStep::Order& together);
  /// What is sent from now on comes after what the trainer queued so far.
  void follow_trainer() { residence_.follow_trainer(); }

  /// Nothing is sent any more; the others hear of it.
  void fail(std::exception_ptr error);
  /// Runs `work`; what it throws ends the reducer, and is thrown.
  template <typename Work>
  void or_fail(const Work& work) try {
    work();
  } catch (...) {
    fail(std::current_exception());
    step_.lock()->rethrow();
  }

  /// Brackets operations on a device.
  Operation bracket() const { return bracket_of(context_); }
  SharedStep& step() const { return step_; }
  Transport& transport() const { return *context_.transport; }
  const Residence& residence() const { return residence_; }
  std::size_t messages() const { return messages_.size(); }
  double wire_seconds() const { return pipeline_.wire_seconds(); }

 private:
  struct Message {
    Bucket bucket;
    std::size_t chunks_left;
  };

  /// What ranks agree on beside values: this rank's bytes, and the exchange of all ranks' bytes.
  struct Agreement {
    std::vector<std::byte> own = {};
    Handle handle = {};
  };

  /// True once all ranks' bytes are there. The exchange begins if `wanted(step)` returns this
  /// rank's bytes, which are at most `most`.
  template <typename Wanted>
  bool exchange(Agreement& one, std::string_view name, std::size_t most, const Wanted& wanted);
  std::size_t order_bytes() const { return context_.slots.size() * sizeof(std::uint32_t); }
  ConstByteSpan of_rank(const Agreement& one, int rank) const;
  bool learn_weights();
  bool compare_states();
  bool learn_order();
  bool vote();
  void submit(std::uint32_t index, Message& message);
  void chunk_done(std::uint32_t index, Message& message);
  std::uint32_t add_message(Bucket bucket);

  SharedStep& step_;
  ExchangeContext& context_;
  Residence& residence_;
  StepWeights& weights_;
  Reducer reducer_;
  std::deque<Message>
      messages_;  ///< grows with the step's lock held; its elements are the driver's
  std::map<ReducerStep::Order, std::vector<std::uint32_t>> together_;
  Pipeline pipeline_;
  Agreement samples_, states_, order_;  ///< rank 0's state ends with the order
  LoadedState loaded_;
  Handle vote_;
};

}  // namespace tersor
