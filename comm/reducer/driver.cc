#include "comm/reducer/driver.h"

#include <mutex>
#include <thread>

#include "kernels/host/signals.h"

namespace tersor {
namespace {

class ThreadDriver final : public Driver {
 public:
  explicit ThreadDriver(Sender& sender) : Driver(sender) {
    const kernels::SignalsBlocked signals_blocked;
    thread_ = std::thread([this] { work(); });
  }

  ~ThreadDriver() override {
    {
      const LockedStep step = sender_.step().lock();
      stopping_ = true;
    }
    sender_.transport().wake();
    thread_.join();
  }

  void wake(LockedStep&) override { sender_.transport().wake(); }
  void wait(LockedStep& step) override { step.wait(); }
  void progress() override {}

 private:
  void work() try {
    sender_.backend().set_up_worker();
    while (!is_finished()) sender_.advance_or_wait();
  } catch (...) {
    sender_.fail(std::current_exception());
  }

  bool is_finished() const {
    const LockedStep step = sender_.step().lock();
    return stopping_ || step->failed();
  }

  bool stopping_ = false;
  std::thread thread_;
};

class CallerDriver final : public Driver {
 public:
  using Driver::Driver;

  void send(Drain) override { progress(); }

  // Errors are reported through the step.
  void wait(LockedStep& step) override {
    step.unlock();
    try {
      const std::lock_guard driving(driving_);
      sender_.advance_or_wait();
    } catch (...) {
      sender_.fail(std::current_exception());
    }
    step.lock();
  }

  // If another thread is driving, this thread returns: the other thread also sends this thread's
  // messages.
  void progress() override {
    const std::unique_lock driving(driving_, std::try_to_lock);
    if (!driving.owns_lock()) return;
    sender_.run_or_fail([this] {
      while (sender_.advance()) {
      }
    });
  }

 private:
  std::mutex driving_;  ///< held by the driving thread
};

/// Sends on the trainer's thread: all requested messages as far as ticks advance (see pipeline.h),
/// or to the end for Drain::kYes. Only the first step waits.
class QueueingDriver final : public Driver {
 public:
  using Driver::Driver;

  void send(Drain drain) override {
    const std::lock_guard queueing(queueing_);
    if (!must_send(drain)) return;
    begin();
    sender_.run_or_fail([&] {
      while (sender_.advance()) {
      }
      if (drain == Drain::kYes) sender_.finish();
      sender_.transport().end(sender_.bracket());
    });
  }

  void wait(LockedStep& step) override {
    step.unlock();
    send(Drain::kYes);
    step.lock();
  }

  void progress() override { check_faults(); }

  // Also needed while a captured step is replayed.
  void check_faults() override {
    sender_.run_or_fail([this] { sender_.transport().progress(); });
  }

 private:
  bool must_send(Drain drain) const {
    const LockedStep step = sender_.step().lock();
    return (step->has_work() || drain == Drain::kYes) && !step->failed();
  }

  // An invalid argument found before queueing fails only this call. The next call queues the
  // requested messages.
  void begin() try {
    while (sender_.agree()) {
    }
    sender_.transport().begin(sender_.bracket());
  } catch (const InvalidArgumentError&) {
    throw;
  } catch (...) {
    sender_.fail(std::current_exception());
    throw;
  }

  std::mutex queueing_;  ///< held by the queueing thread; lock before the step's lock
};

}  // namespace

std::unique_ptr<Driver> make_driver(ProgressBy progress, const ExchangeContext& context,
                                    Sender& sender) {
  const bool alone = context.ranks.count == 1;
  if (context.queues && !alone) return std::make_unique<QueueingDriver>(sender);
  if (progress == ProgressBy::kThread && !alone && context.transport->traits().any_thread)
    return std::make_unique<ThreadDriver>(sender);
  return std::make_unique<CallerDriver>(sender);
}

}  // namespace tersor
