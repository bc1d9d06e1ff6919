// The step under way: which parameters are ready, which messages may go, which are back. Knows
// neither values nor ranks: tests/comm/step_test.cc drives it alone.
//
// A step is open while parameters become ready; `close` ends that; the step is complete when its
// last message is back. The trainer's thread readies, closes and waits; a driver takes what was
// requested and tells what is back.
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
  using Messages = std::vector<Order>;       ///< the parameters of each
  using Parameter = std::uint32_t;

  /// Before all else, and where there are more from the next step on, which learns the order
  /// anew. With kOfReady there is nothing to learn: `request` takes the place of `ready`.
  void set_parameters(std::size_t count, SendingOrder sending);
  /// Before that: goes on where another reducer had come to.
  void go_on_from(std::uint32_t number) { number_ = number; }
  /// Nothing is ready yet, and the step before is complete.
  bool untouched() const;
  SendingOrder sending() const { return sending_; }

  /// Complete steps; also the number of the one under way.
  std::uint32_t number() const { return number_; }
  bool closed() const { return closed_; }
  bool is_ready(Parameter parameter) const { return ready_[parameter]; }
  /// Whether the result of a parameter is there, of the step of this number.
  bool is_back(Parameter parameter, std::uint32_t step) const { return back_[parameter] > step; }
  /// Whether the parameter's message was requested.
  bool is_requested(Parameter parameter) const;

  /// Whether closing it would end a step: `wait` after `flush` ends none.
  bool ends() const { return !closed_ && awaited_; }
  /// The last step was closed and is complete, and nobody has waited for it yet.
  bool is_over() const { return !closed_ && !awaited_; }
  /// Somebody waited for the last step: the next `close` ends another.
  void set_awaited() { awaited_ = true; }

  /// These are true where messages were requested: the driver should look.
  bool ready(Parameter parameter);
  /// The order of sending is `order` from now on, in these messages.
  bool learn(Order order, Messages messages);
  /// Of kOfReady, between two steps.
  void forget_messages() { messages_.clear(); }
  /// One more message, which `request` may name.
  std::uint32_t add_message(Order parameters);
  /// These parameters are ready, all of these messages.
  bool request(const Order& parameters, std::span<const std::uint32_t> messages);

  /// Nothing becomes ready any more. Where the order is not known, the driver is asked to learn it.
  void close();
  bool order_known() const { return order_known_; }
  /// As learned or proposed; else empty.
  const Order& order() const { return order_; }
  void forget_order();
  /// The order of a loaded state: known once ranks have agreed on their states.
  void propose(Order order);
  /// Whether the driver is asked to learn the order: told once.
  bool take_order_wanted() { return std::exchange(order_wanted_, false); }

  /// Whether ranks compare the states that they loaded, before the first message of a step.
  enum class Agreement : std::uint8_t { kNone, kWanted, kReached };
  bool agreeing() const { return agreement_ == Agreement::kWanted; }
  bool has_agreed() const { return agreement_ == Agreement::kReached; }
  /// Once in a step. Until `agree` nothing is sent, and no order is known.
  void want_agreement();
  /// Ranks loaded equal states. The order is to be learned if none is known by now.
  void agree();

  /// Parameters in the order in which they became ready.
  const Order& sequence() const { return sequence_; }

  /// Whether the driver has something to do.
  bool wanted() const { return !requested_.empty() || order_wanted_ || agreeing(); }
  std::optional<std::uint32_t> take_requested();
  /// A message's results are there.
  void set_back(std::uint32_t message);
  /// The result of a parameter that nobody else has is there at once.
  void set_parameter_back(Parameter parameter) {
    back_[parameter] = number_ + 1;
    changed_ = true;
  }
  /// Whether all that was closed is back: `complete` is to be called.
  bool all_back() const { return closed_ && order_known_ && messages_back_ == expected(); }
  /// The next step is open.
  void complete();

  /// Something beside it that others wait for.
  void set_changed() { changed_ = true; }

  /// No step is completed any more; the first error stays.
  void fail(std::exception_ptr error);
  /// In the place of one before.
  void fail_anew(std::exception_ptr error) { error_ = std::move(error); }
  bool failed() const { return error_ != nullptr; }
  void rethrow() const;

  /// Whether there is something that others wait for: told once.
  bool take_changed() { return std::exchange(changed_, false); }

 private:
  bool request_ready();
  /// Messages of the step under way.
  std::size_t expected() const {
    return sending_ == SendingOrder::kOfReady ? next_message_ : messages_.size();
  }
  bool message_ready(const Order& message) const;

  std::vector<bool> ready_;
  std::vector<std::uint32_t> back_;  ///< steps that are done, of each parameter
  std::uint32_t number_ = 0;
  bool closed_ = false;
  bool awaited_ = true;  ///< nobody closed a step since the last wait
  SendingOrder sending_ = SendingOrder::kLearned;
  bool order_known_ = false;
  bool order_wanted_ = false;
  Agreement agreement_ = Agreement::kNone;
  Order sequence_, order_;
  Messages messages_;
  std::size_t next_message_ = 0;  ///< not yet requested; kOfReady: how many were
  std::size_t messages_back_ = 0;
  std::deque<std::uint32_t> requested_;
  std::exception_ptr error_;
  bool changed_ = false;
};

class LockedStep;

/// The step that a trainer's thread and a driving one share. What both touch beside it, they touch
/// while they have it locked.
class SharedStep {
 public:
  [[nodiscard]] LockedStep lock();

 private:
  friend class LockedStep;
  std::mutex mutex_;
  std::condition_variable changed_;
  ReducerStep step_;
};

/// The step, locked until this goes. A function that takes one is called with the lock held.
class LockedStep {
 public:
  explicit LockedStep(SharedStep& step) : shared_(step), lock_(step.mutex_) {}
  ~LockedStep() {
    if (lock_.owns_lock()) tell();
  }

  ReducerStep& operator*() const { return shared_.step_; }
  ReducerStep* operator->() const { return &shared_.step_; }
  void lock() { lock_.lock(); }
  void unlock() {
    tell();
    lock_.unlock();
  }
  /// Lets go of the lock until somebody else changed something.
  void wait() {
    tell();
    shared_.changed_.wait(lock_);
  }

 private:
  void tell() {
    if (shared_.step_.take_changed()) shared_.changed_.notify_all();
  }

  SharedStep& shared_;
  std::unique_lock<std::mutex> lock_;
};

inline LockedStep SharedStep::lock() { return LockedStep(*this); }

}  // namespace tersor
