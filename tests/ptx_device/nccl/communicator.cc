// See communicator.h.
#include "tests/ptx_device/nccl/communicator.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>
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
  const char ready = 1;
  std::vector<char> all(static_cast<std::size_t>(ranks));
  const bool told = !stopped && tell(&ready, sizeof ready, all.data());
  if (rank == 0) ptx::nccl::unlink_room(name.c_str());
  return told;
}

bool ncclComm::hear(int from, std::size_t bytes, void* word) const {
  const ptx::nccl::Told& told = room->told[from];
  while (told.turn.load(std::memory_order_acquire) < turn) {
    if (is_over()) return false;
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

bool ncclComm::wait_for_turn(std::uint64_t own) const {
  while (done < own && !is_over()) ptx::nccl::rest();
  return !is_over();
}

void ncclComm::wait_for_device() const {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (done < queued || under_way != 0) {
    if (std::chrono::steady_clock::now() > until) {
      std::fprintf(stderr, "ptx-nccl: rank %d waits for ever for its own groups to end\n", rank);
      std::abort();
    }
    ptx::nccl::rest();
  }
}

void ncclComm::leave() {
  if (starting.joinable()) starting.join();
  wait_for_device();
  stopped = true;
  wait_for_device();
  if (room != nullptr) ptx::nccl::close_room(room);
}
