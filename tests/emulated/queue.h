// What kernels/common/queue.cuh is on a device: launches run on the emulator, in a stream's order.
#pragma once

#include "tests/emulated/emulator.h"
#include "tests/emulated/streams.h"

#include <tersor/stream.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <type_traits>
#include <typeinfo>

namespace tersor::kernels {

constexpr unsigned kWarpThreads = 32;

class Queue {
 public:
  explicit Queue(StreamView stream) : stream_(stream) {}

  template <class Kernel>
  unsigned blocks_for(std::size_t tasks, unsigned tasks_a_block) const {
    const std::size_t wanted = (tasks + tasks_a_block - 1) / tasks_a_block;
    return static_cast<unsigned>(
        std::clamp<std::size_t>(wanted, 1, emulator::settings().most_blocks));
  }

  template <class Kernel>
  void launch(const Kernel& kernel, unsigned blocks) {
    // What a device demands of kernel parameters and of static shared memory.
    static_assert(std::is_trivially_copyable_v<Kernel> && sizeof(Kernel) <= 32764);
    using Shared = typename Kernel::Shared;
    static_assert(sizeof(Shared) <= 48 * 1024 - 2048 && Kernel::kThreads % kWarpThreads == 0);
    static_assert(Kernel::kThreads <= 1024 && Kernel::kThreads * Kernel::kResident <= 2048);
    const std::string name = emulator::readable_name(typeid(Kernel).name());
    emulator::launch(stream_, name, [=] {
      emulator::run({.kernel = name,
                     .blocks = blocks,
                     .threads = Kernel::kThreads,
                     .shared_bytes = std::is_empty_v<Shared> ? 0 : sizeof(Shared),
                     .body = [&](const emulator::Block& block, void* shared) {
                       kernel(block, *static_cast<Shared*>(shared));
                     }});
    });
  }

  void zero(void* pointer, std::size_t bytes) {
    emulator::launch(stream_, "zeros", [=] { emulator::clear(pointer, bytes); });
  }

 private:
  StreamView stream_;
};

}  // namespace tersor::kernels
