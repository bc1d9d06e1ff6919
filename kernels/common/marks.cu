// See marks.h. One thread, a few words of pinned memory.

#include "kernels/common/marks.h"
#include "kernels/common/memory.cuh"
#include "kernels/common/queue.cuh"

#include <algorithm>
#include <cstdint>
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
    store_for_host(counter, load_of_host(counter) + 1);
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

}  // namespace tersor::kernels
