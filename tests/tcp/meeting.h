// Ranks over TCP on threads of a test: the store, and the transports.
#pragma once

#include <tersor/error.h>
#include <tersor/tcp.h>

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace tersor::test {

/// A store in memory.
class MemoryStore final : public KeyValueStore {
 public:
  void set(const std::string& key, const std::string& value) override {
    const std::lock_guard lock(mutex_);
    values_[key] = value;
    changed_.notify_all();
  }
  std::string get(const std::string& key, Clock::time_point until) override {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_until(lock, until, [&] { return values_.contains(key); }))
      throw TransportError("nobody set " + key);
    return values_[key];
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

/// Transports of `ranks` new ranks on the loopback.
inline std::vector<std::unique_ptr<Transport>> tcp_transports(int ranks, TcpOptions options = {}) {
  options.address = "127.0.0.1";
  MemoryStore store;
  std::vector<std::unique_ptr<Transport>> transports(static_cast<std::size_t>(ranks));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      transports[static_cast<std::size_t>(rank)] = make_tcp_transport(store, rank, ranks, options);
    });
  threads.clear();
  return transports;
}

}  // namespace tersor::test
