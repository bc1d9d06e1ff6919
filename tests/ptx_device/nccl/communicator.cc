// See communicator.h.
#include "tests/ptx_device/nccl/communicator.h"

#include <cstring>
#include <vector>

ncclResult_t ncclComm::start(std::function<bool()> begin) {
  state = ncclInProgress;
  const auto run = [this, begin] { state = begin() ? ncclSuccess : ncclSystemError; };
  if (blocking) {
    run();
    return state;
  }
  starting = std::thread(run);
  return ncclInProgress;
}

bool ncclComm::enter() {
  room = ptx::nccl::open_room(name.c_str());
  if (room == nullptr) return false;
  ++room->present;
  while (room->present < ranks && !stopped) ptx::nccl::rest();
  if (stopped) return false;
  const char ready = 1;
  std::vector<char> all(static_cast<std::size_t>(ranks));
  const bool told = tell(&ready, sizeof ready, all.data());
  if (rank == 0) ptx::nccl::unlink_room(name.c_str());
  return told;
}

bool ncclComm::hear(int from, std::size_t bytes, void* word) const {
  const ptx::nccl::Told& told = room->told[from];
  while (told.turn.load(std::memory_order_acquire) < turn) {
    if (stopped) return false;
    ptx::nccl::rest();
  }
  std::memcpy(word, told.bytes[turn % 2], bytes);
  return true;
}

bool ncclComm::tell(const void* word, std::size_t bytes, void* all) {
  ++turn;
  ptx::nccl::Told& own = room->told[rank];
  std::memcpy(own.bytes[turn % 2], word, bytes);
  own.turn.store(turn, std::memory_order_release);
  for (int i = 0; i < ranks; ++i)
    if (!hear(i, bytes, static_cast<char*>(all) + static_cast<std::size_t>(i) * bytes))
      return false;
  return true;
}

void ncclComm::leave() {
  if (starting.joinable()) starting.join();
  while (under_way != 0) ptx::nccl::rest();
  stopped = true;
}
