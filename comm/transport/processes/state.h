// Memory of a world that the network may still write to or read from when the world goes away.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "comm/transport/processes/world.h"

namespace tersor::processes {

struct World::State {
  explicit State(std::unique_ptr<Wire> own) : wire(std::move(own)) {}

  host::BlockPools pools;
  std::deque<ProcessLetter> letters;
  std::vector<ProcessLetter*> free_letters;
  std::map<std::uint64_t, std::unique_ptr<Box>> boxes;
  std::unique_ptr<Wire> wire;  // goes first
};

}  // namespace tersor::processes
