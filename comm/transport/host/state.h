// Memory of a world that the network may still write to or read from when the world goes away.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "comm/transport/host/world.h"

namespace tersor::host {

struct World::State {
  explicit State(std::unique_ptr<Wire> own) : wire(std::move(own)) {}

  std::unique_ptr<Wire> wire;  // goes last: it holds the pools
  std::deque<WireLetter> letters;
  std::vector<WireLetter*> free_letters;
  std::map<std::uint64_t, std::unique_ptr<Box>> boxes;
};

/// Counts a thread that waits, for as long as this lives.
class Waiting {
 public:
  explicit Waiting(std::atomic<int>& threads) : threads_(threads) { ++threads_; }
  ~Waiting() { --threads_; }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

 private:
  std::atomic<int>& threads_;
};

}  // namespace tersor::host
