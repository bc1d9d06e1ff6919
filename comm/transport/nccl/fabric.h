// What all channels and splits of one transport share: the first fault, and the thread that finds
// faults while nobody waits on the host. It looks at words that the device writes and asks NCCL for
// errors; it asks CUDA nothing, so that streams may be captured meanwhile.
#pragma once

#include <tersor/transport.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "comm/transport/nccl/communicator.h"
#include "comm/transport/nccl/fault.h"
#include "comm/transport/nccl/queue.h"

namespace tersor::nccl {

class Fabric {
 public:
  Fabric() = default;
  ~Fabric();

  /// From here on the thread watches. `who` stands in messages: "rank 0 of 4".
  void watch(std::string who);
  const std::string& who() const { return who_; }

  const Fault& fault() const { return fault_; }
  void check(std::string_view operation) const { fault_.check(operation); }
  /// Keeps the cause, stops all communicators and waits for that. Those that are stopped `later`
  /// end first what tells other ranks of the same fault; them the thread stops.
  void fail(const std::string& cause, std::chrono::milliseconds later = {},
            Blame blame = Blame::kRanks);

  void add(Communicator& communicator);
  void add(Queue& queue);
  /// Wait while communicators are being stopped.
  void remove(Communicator& communicator);
  void remove(Queue& queue);

  /// For names on a device: the same number for the same name.
  std::uint32_t number_of(std::string_view name);

  /// One look of the thread's.
  void observe(Clock::time_point now);

 private:
  using Lock = std::unique_lock<std::mutex>;

  std::optional<std::string> find_late(Clock::time_point now);
  std::optional<std::string> find_damage();
  std::optional<std::string> find_error();
  void raise(Clock::time_point now, const std::optional<std::string>& cause,
             Blame blame = Blame::kRanks);
  std::string what_nccl_says();
  void stop_all(Clock::time_point now, Lock& lock);
  template <typename Kind, typename Action>
  void on_each_at_once(const std::vector<Kind*>& all, const Action& action) const;
  std::string advice() const;
  void run(const std::stop_token& stop);

  Fault fault_;
  std::mutex mutex_;  // of what follows
  std::condition_variable_any changed_;
  std::string who_ = "this rank";
  std::vector<Communicator*> communicators_;
  std::vector<Queue*> queues_;
  std::vector<std::string> names_;
  std::optional<Clock::time_point> stop_at_;
  bool stopping_ = false;  // then nothing is removed, though the lock is free
  int device_ = 0;
  std::jthread thread_;
};

}  // namespace tersor::nccl
