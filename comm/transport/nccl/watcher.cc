#include "comm/transport/nccl/watcher.h"

#include <algorithm>

#include "kernels/device/device.h"
#include "kernels/host/signals.h"

namespace tersor::nccl {
namespace {

using namespace std::chrono_literals;

constexpr auto kPollInterval = 15ms;

}  // namespace

Watcher::~Watcher() {
  thread_.request_stop();
  changed_.notify_all();
}

void Watcher::start(std::string rank_name) {
  rank_name_ = std::move(rank_name);
  device_ = kernels::current_device();
  const kernels::SignalsBlocked quiet;
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

void Watcher::run(const std::stop_token& stop) {
  kernels::try_use_device(device_);
  while (!stop.stop_requested()) {
    observe(Clock::now());
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, stop, kPollInterval, [] { return false; });
  }
}

std::uint32_t Watcher::number_of(std::string_view name) {
  const std::lock_guard lock(mutex_);
  const auto found = std::find(names_.begin(), names_.end(), name);
  const auto number = static_cast<std::uint32_t>(found - names_.begin());
  if (found == names_.end()) names_.emplace_back(name);
  return number;
}

void Watcher::fail(const std::string& cause, std::chrono::milliseconds delay, FaultSource source) {
  Lock lock(mutex_);
  raise(Clock::now() + delay, cause, source);
  stop_all(Clock::now(), lock);
}

void Watcher::raise(Clock::time_point stop_at, const std::optional<std::string>& cause,
                    FaultSource source) {
  if (cause.has_value() && fault_.raise(*cause + revoke_hint(), source)) stop_at_ = stop_at;
}

void Watcher::observe(Clock::time_point now) {
  Lock lock(mutex_);
  if (!fault_.is_raised()) raise(now, find_frame_fault(), FaultSource::kFrame);
  if (!fault_.is_raised()) raise(now, find_late(now));
  if (!fault_.is_raised()) raise(now, find_error());
  stop_all(now, lock);
}

// Checks for host calls that hang in NCCL and for late brackets on the device.
std::optional<std::string> Watcher::find_late(Clock::time_point now) {
  for (const Communicator* communicator : communicators_)
    if (const auto name = communicator->late_call(now))
      return *name + " on " + rank_name_ +
             ": a call of NCCL did not return in time: a rank failed, is late, or " +
             "calls another operation";
  for (Queue* queue : queues_)
    if (const auto late = queue->observe(now))
      return names_.at(late->name) + " on " + rank_name_ + ": not done after " +
             std::to_string(late->timeout.count()) +
             " ms on the device: a rank failed, is late, or calls another operation" +
             nccl_error_text();
  return std::nullopt;
}

std::optional<std::string> Watcher::find_frame_fault() {
  for (Queue* queue : queues_)
    if (const auto text = queue->observe_frame_fault()) return rank_name_ + ": " + *text;
  return std::nullopt;
}

std::optional<std::string> Watcher::find_error() {
  const std::string found = nccl_error_text();
  if (found.empty()) return std::nullopt;
  return rank_name_ + found;
}

std::string Watcher::nccl_error_text() {
  for (Communicator* communicator : communicators_)
    if (const auto error = communicator->async_error()) return ": NCCL reports " + *error;
  return {};
}

// Runs each stop on a separate thread. NCCL stops a communicator by signaling the device and
// waiting for the queued work, and this work may depend on another communicator.
template <typename Kind, typename Action>
void Watcher::for_each_in_parallel(const std::vector<Kind*>& all, const Action& action) const {
  std::vector<std::jthread> threads;
  for (Kind* target : all)
    threads.emplace_back([target, &action, device = device_] {
      kernels::try_use_device(device);  // communicators stop on a broken device, too
      action(*target);
    });
}

// Stops without the lock, because the stop waits for the queued work.
void Watcher::stop_all(Clock::time_point now, Lock& lock) {
  if (stopping_ || !stop_at_.has_value() || now < *stop_at_) return;
  std::vector<Communicator*> running;
  for (Communicator* communicator : communicators_)
    if (!communicator->is_stopped()) running.push_back(communicator);
  if (running.empty()) return;
  const std::vector<Queue*> queues = queues_;
  stopping_ = true;
  lock.unlock();
  for_each_in_parallel(queues, [](Queue& queue) { queue.invalidate(); });
  for_each_in_parallel(running, [](Communicator& communicator) { communicator.stop(); });
  lock.lock();
  stopping_ = false;
  changed_.notify_all();
}

std::string Watcher::revoke_hint() const {
  const auto cannot_be_stopped = [](const Communicator* communicator) {
    return communicator->owner() == Owner::kCaller && api().comm_revoke == nullptr;
  };
  if (std::none_of(communicators_.begin(), communicators_.end(), cannot_be_stopped)) return {};
  return "; abort your communicator to end its waiting calls: NCCL " + version_name(api().version) +
         " has no ncclCommRevoke (new in 2.28.9)";
}

}  // namespace tersor::nccl
