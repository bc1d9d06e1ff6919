// Implements fabric.h.
#include "comm/transport/nccl/fabric.h"

#include <algorithm>

#include "kernels/common/device.h"

namespace tersor::nccl {
namespace {

using namespace std::chrono_literals;

constexpr auto kLookEvery = 15ms;

}  // namespace

Fabric::~Fabric() {
  thread_.request_stop();
  changed_.notify_all();
}

void Fabric::watch(std::string who) {
  who_ = std::move(who);
  device_ = kernels::current_device();
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

void Fabric::run(const std::stop_token& stop) {
  kernels::use_device(device_);
  while (!stop.stop_requested()) {
    observe(Clock::now());
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, stop, kLookEvery, [] { return false; });
  }
}

void Fabric::add(Communicator& communicator) {
  const std::lock_guard lock(mutex_);
  communicators_.push_back(&communicator);
}

void Fabric::remove(Communicator& communicator) {
  Lock lock(mutex_);
  changed_.wait(lock, [this] { return !stopping_; });
  std::erase(communicators_, &communicator);
}

void Fabric::add(Lane& lane) {
  const std::lock_guard lock(mutex_);
  lanes_.push_back(&lane);
}

void Fabric::remove(Lane& lane) {
  Lock lock(mutex_);
  changed_.wait(lock, [this] { return !stopping_; });
  std::erase(lanes_, &lane);
}

std::uint32_t Fabric::number_of(std::string_view name) {
  const std::lock_guard lock(mutex_);
  const auto found = std::find(names_.begin(), names_.end(), name);
  const auto number = static_cast<std::uint32_t>(found - names_.begin());
  if (found == names_.end()) names_.emplace_back(name);
  return number;
}

void Fabric::fail(const std::string& cause, std::chrono::milliseconds later) {
  Lock lock(mutex_);
  if (!fault_.raise(cause + advice())) return;
  stop_at_ = Clock::now() + later;
  stop_all(Clock::now(), lock);
}

void Fabric::observe(Clock::time_point now) {
  Lock lock(mutex_);
  if (!fault_.is_raised()) {
    auto cause = find_late(now);
    if (!cause.has_value()) cause = find_error();
    if (cause.has_value() && fault_.raise(*cause + advice())) stop_at_ = now;
  }
  stop_all(now, lock);
}

// A call of the host's that blocks in NCCL, or a bracket that the device does not come through.
std::optional<std::string> Fabric::find_late(Clock::time_point now) {
  for (const Communicator* communicator : communicators_)
    if (const auto name = communicator->late_call(now))
      return *name + " on " + who_ +
             ": a call of NCCL did not come back in time: a rank is gone, " +
             "late, or calls something else";
  for (Lane* lane : lanes_)
    if (const auto late = lane->observe(now))
      return names_.at(late->name) + " on " + who_ + ": not done after " +
             std::to_string(late->timeout.count()) +
             " ms on the device: a rank is gone, late, or calls something else" + what_nccl_says();
  return std::nullopt;
}

std::optional<std::string> Fabric::find_error() {
  const std::string found = what_nccl_says();
  if (found.empty()) return std::nullopt;
  return who_ + found;
}

std::string Fabric::what_nccl_says() {
  for (Communicator* communicator : communicators_)
    if (const auto error = communicator->ask_error()) return ": NCCL reports " + *error;
  return {};
}

// Without the lock: it takes as long as what is queued takes to end.
void Fabric::stop_all(Clock::time_point now, Lock& lock) {
  if (stopping_ || !stop_at_.has_value() || now < *stop_at_) return;
  std::vector<Communicator*> running;
  for (Communicator* communicator : communicators_)
    if (!communicator->is_stopped()) running.push_back(communicator);
  if (running.empty()) return;
  stopping_ = true;
  lock.unlock();
  stop_at_once(running);
  lock.lock();
  stopping_ = false;
  changed_.notify_all();
}

// NCCL tells the device, and waits until what is queued on this communicator has run: which may
// stand behind what waits on another. So each is stopped by a thread of its own.
void Fabric::stop_at_once(const std::vector<Communicator*>& communicators) const {
  std::vector<std::jthread> threads;
  for (Communicator* communicator : communicators)
    threads.emplace_back([communicator, device = device_] {
      kernels::use_device(device);
      communicator->stop();
    });
}

std::string Fabric::advice() const {
  const auto left_alone = [](const Communicator* communicator) {
    return communicator->owner() == Owner::kCaller && api().comm_revoke == nullptr;
  };
  if (std::none_of(communicators_.begin(), communicators_.end(), left_alone)) return {};
  return "; abort your communicator to free what waits on it: NCCL " + version_name(api().version) +
         " has no ncclCommRevoke, which came with 2.28";
}

}  // namespace tersor::nccl
