// The current step: ready parameters, requested messages and received messages. Independent of
// values and ranks, so tests/comm/step_test.cc tests ReducerStep alone.
//
// Parameters become ready in an open step. `close` ends this phase. The step is complete after its
// last message. The trainer's thread calls `ready`, `close` and the waiting functions. A driver
// takes requested messages and reports received messages.
#pragma once

#include <tersor/reducer.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace tersor {

class ReducerStep {
 public:
  using Order = std::vector<std::uint32_t>;  ///< parameters
  using Messages = std::vector<Order>;       ///< the parameters of each message
  using Parameter = std::uint32_t;

  /// Call first, and again after adding parameters. The next step then learns the order again. With
  /// kReadyOrder, no order is learned, and `request` replaces `ready`.
  void set_parameters(std::size_t count, SendingOrder sending);
  /// Call before set_parameters: continues after the steps of another reducer.
  void continue_from(std::uint32_t number) { number_ = number; }
  /// True if no parameter is ready and the last step is complete.
  bool untouched() const;
  SendingOrder sending() const { return sending_; }

  /// The number of complete steps, also the number of the current step.
  std::uint32_t number() const { return number_; }
  bool closed() const { return closed_; }
  bool is_ready(Parameter parameter) const { return ready_[parameter]; }
  /// True if the parameter's result in the step with this number has arrived.
  bool is_done(Parameter parameter, std::uint32_t step) const { return done_[parameter] > step; }
  /// True if the parameter's message was requested.
  bool is_requested(Parameter parameter) const;

  /// True if `close` would end a step. `wait` after `flush` ends no step.
  bool can_close() const { return !closed_ && awaited_; }
  /// True if the last step is complete and no caller has waited for this step.
  bool completed_unawaited() const { return !closed_ && !awaited_; }
  /// Records a wait for the last step: the next `close` ends another step.
  void set_awaited() { awaited_ = true; }

  /// These functions return true if messages were requested, so the driver must run.
  bool ready(Parameter parameter);
  /// Sets the sending order and the messages.
  bool set_order(Order order, Messages messages);
  /// Call between two steps, only with kReadyOrder.
  void drop_messages() { messages_.clear(); }
  /// Adds a message for `request`.
  std::uint32_t add_message(Order parameters);
  /// Marks these parameters as ready and requests all of these messages.
  bool request(const Order& parameters, std::span<const std::uint32_t> messages);

  /// Ends the phase in which parameters become ready. If the order is unknown, asks the driver to
  /// learn the order.
  void close();
  bool order_known() const { return order_known_; }
  /// The learned or proposed order; otherwise empty.
  const Order& order() const { return order_; }
  void reset_order();
  /// Proposes the order of a loaded state. The order becomes known once ranks agree on their
  /// states.
  void propose(Order order);
  /// Returns true once after a request to learn the order.
  bool take_order_request() { return std::exchange(order_requested_, false); }

  /// The comparison of loaded states between ranks, before the first message of a step.
  enum class LoadAgreement : std::uint8_t { kNone, kRequested, kReached };
  bool agreement_pending() const { return agreement_ == LoadAgreement::kRequested; }
  bool has_agreed() const { return agreement_ == LoadAgreement::kReached; }
  /// Called once per step. No message is sent and no order is known until `agree`.
  void request_agreement();
  /// Records that ranks loaded equal states. If no order is known now, the order must be learned.
  void agree();

  /// The parameters in the order in which they became ready.
  const Order& sequence() const { return sequence_; }

  /// True if the driver has work.
  bool has_work() const { return !requested_.empty() || order_requested_ || agreement_pending(); }
  /// Returns the next message, or nothing before ranks agree on their loaded states.
  std::optional<std::uint32_t> take_requested();
  /// Records the arrival of a message's results.
  void set_done(std::uint32_t message);
  /// Records a result that needs no other rank.
  void set_parameter_done(Parameter parameter) {
    done_[parameter] = number_ + 1;
    changed_ = true;
  }
  /// True if all messages of a closed step have arrived. Call `complete` then.
  bool all_done() const { return closed_ && order_known_ && messages_done_ == expected(); }
  /// Completes the step and opens the next step.
  void complete();

  /// Wakes waiting threads after a change outside this object.
  void set_changed() { changed_ = true; }

  /// Records the first error. No later step completes.
  void fail(std::exception_ptr error);
  /// Replaces an earlier error.
  void replace_error(std::exception_ptr error) { error_ = std::move(error); }
  bool failed() const { return error_ != nullptr; }
  void rethrow() const;

  /// Returns true once after a change that wakes waiting threads.
  bool take_changed() { return std::exchange(changed_, false); }

 private:
  bool request_ready();
  /// The number of messages in the current step.
  std::size_t expected() const {
    return sending_ == SendingOrder::kReadyOrder ? next_message_ : messages_.size();
  }

  std::vector<bool> ready_;
  std::vector<std::uint32_t> done_;  ///< completed steps, by parameter
  std::uint32_t number_ = 0;
  bool closed_ = false;
  bool awaited_ = true;  ///< True if no step was closed since the last wait
  SendingOrder sending_ = SendingOrder::kLearned;
  bool order_known_ = false;
  bool order_requested_ = false;
  LoadAgreement agreement_ = LoadAgreement::kNone;
  Order sequence_, order_;
  Messages messages_;
  /// first message not requested; kReadyOrder: number of requested messages
  std::size_t next_message_ = 0;
  std::size_t messages_done_ = 0;
  std::deque<std::uint32_t> requested_;
  std::exception_ptr error_;
  bool changed_ = false;
};

class LockedStep;

/// The step shared by the trainer's thread and the driving thread. The lock also guards the other
/// data shared by these threads.
class SharedStep {
 public:
  [[nodiscard]] LockedStep lock();

 private:
  friend class LockedStep;
  std::mutex mutex_;
  std::condition_variable changed_;
  ReducerStep step_;
};

/// The step, locked for the lifetime of this object. Functions with a LockedStep parameter run with
/// the lock held.
class LockedStep {
 public:
  explicit LockedStep(SharedStep& step) : shared_(step), lock_(step.mutex_) {}
  ~LockedStep() {
    if (lock_.owns_lock()) notify();
  }

  ReducerStep& operator*() const { return shared_.step_; }
  ReducerStep* operator->() const { return &shared_.step_; }
  void lock() { lock_.lock(); }
  void unlock() {
    notify();
    lock_.unlock();
  }
  /// Releases the lock until another thread reports a change.
  void wait() {
    notify();
    shared_.changed_.wait(lock_);
  }

 private:
  void notify() {
    if (shared_.step_.take_changed()) shared_.changed_.notify_all();
  }

  SharedStep& shared_;
  std::unique_lock<std::mutex> lock_;
};

inline LockedStep SharedStep::lock() { return LockedStep(*this); }

}  // namespace tersor
