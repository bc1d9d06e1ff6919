// See room.h.
#include "tests/ptx_device/nccl/room.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <thread>

namespace ptx::nccl {
namespace {

std::string path_of(const char* name) { return std::string("/ptx-nccl-") + name; }

}  // namespace

Room* open_room(const char* name) {
  const int file = shm_open(path_of(name).c_str(), O_CREAT | O_RDWR, 0600);
  if (file < 0) return nullptr;
  void* memory = MAP_FAILED;
  if (ftruncate(file, sizeof(Room)) == 0)
    memory = mmap(nullptr, sizeof(Room), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  return memory == MAP_FAILED ? nullptr : static_cast<Room*>(memory);
}

void close_room(Room* room) { munmap(room, sizeof *room); }

void unlink_room(const char* name) { shm_unlink(path_of(name).c_str()); }

void rest() { std::this_thread::sleep_for(std::chrono::microseconds(30)); }

}  // namespace ptx::nccl
