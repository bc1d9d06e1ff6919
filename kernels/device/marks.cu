// See marks.h. One thread, a few words of pinned memory.

#include "kernels/device/device_call.cuh"
#include "kernels/device/marks.h"
#include "kernels/device/memory.cuh"

#include <limits>

namespace tersor::kernels {
namespace {

/// Counts one word on; what belongs to it is there before.
struct MarkKernel {
  static constexpr unsigned kThreads = 32;
  static constexpr unsigned kResident = 1;
  static constexpr bool kScans = false;
  struct Shared {};

  ProgressWords* words;
  std::uint64_t* counter;
  bool begins;
  std::uint32_t timeout_ms;
  std::uint32_t name;

  template <class Block>
  TERSOR_DEVICE void operator()(const Block& block, Shared&) const {
    if (block.thread_rank() != 0) return;
    if (begins) {
      store_for_host(&words->timeout_ms, timeout_ms);
      store_for_host(&words->name, name);
    }
    add_for_host(counter, std::uint64_t{1});
  }
};

/// Ones for all bits.
struct SpoilKernel {
  static constexpr unsigned kThreads = 256;
  static constexpr unsigned kResident = 4;
  static constexpr bool kScans = false;
  struct Shared {};

  Words128* memory;
  std::size_t count;

  template <class Block>
  TERSOR_DEVICE void operator()(const Block& block, Shared&) const {
    const std::size_t threads = std::size_t{block.blocks()} * block.threads();
    std::size_t at = std::size_t{block.rank()} * block.threads() + block.thread_rank();
    for (; at < count; at += threads) store(memory + at, Words128{{~0u, ~0u, ~0u, ~0u}});
  }
};

void mark(ProgressWords* words, std::uint64_t* counter, StreamView stream) {
  Queue(stream).launch(MarkKernel{words, counter, false, 0, 0}, 1);
}

}  // namespace

void mark_begun(ProgressWords* words, std::chrono::milliseconds timeout, std::uint32_t name,
                StreamView stream) {
  const auto most = std::int64_t{std::numeric_limits<std::uint32_t>::max()};
  const auto timeout_ms =
      static_cast<std::uint32_t>(std::clamp<std::int64_t>(timeout.count(), 0, most));
  Queue(stream).launch(MarkKernel{words, &words->begun, true, timeout_ms, name}, 1);
}

void mark_ended(ProgressWords* words, StreamView stream) { mark(words, &words->ended, stream); }
void mark_signal(ProgressWords* words, StreamView stream) { mark(words, &words->signals, stream); }

void spoil(ByteSpan memory, StreamView stream) {
  const std::size_t count = memory.size() / sizeof(Words128);
  Queue queue(stream);
  queue.launch(SpoilKernel{reinterpret_cast<Words128*>(memory.data()), count},
               queue.blocks_for<SpoilKernel>(count, SpoilKernel::kThreads));
}

void advance_step(StateWords* words, StreamView stream) {
  Queue(stream).launch(AdvanceWordsKernel{{words, words, 0}}, 1);
}

const void* any_kernel() { return reinterpret_cast<const void*>(&run_kernel<MarkKernel>); }

}  // namespace tersor::kernels
