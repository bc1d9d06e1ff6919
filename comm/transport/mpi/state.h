// Memory of a world that MPI may still write to or read from when the world goes away.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "comm/transport/mpi/world.h"

namespace tersor::mpi {

struct World::State {
  explicit State(MPI_Comm own) : communicator(own) {}

  MPI_Comm communicator;
  host::BlockPools pools;
  std::deque<MpiLetter> letters;
  std::vector<MpiLetter*> free_letters;
  std::map<std::uint64_t, std::unique_ptr<Box>> boxes;
  std::optional<Wire> wire;  // goes first
};

}  // namespace tersor::mpi
