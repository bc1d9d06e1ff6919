// Implements the kernels of marks.h. Most kernels run a single thread for a few words of pinned
// memory.

#include "kernels/device/device_call.cuh"
#include "kernels/device/marks.h"
#include "kernels/device/memory.cuh"
#include "kernels/device/row.cuh"

#include <limits>

namespace tersor::kernels {
namespace {

/// Increments one counter. The words that belong to the counter are written first.
struct MarkKernel : LaunchBounds<32, 1> {
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

/// Advances the step, and copies the overflow count for the host.
struct AdvanceStepKernel : LaunchBounds<32, 1> {
  StateWords* words;
  std::uint64_t* overflows;

  template <class Block>
  TERSOR_DEVICE void operator()(const Block& block, Shared&) const {
    if (block.thread_rank() != 0) return;
    store(&words->step, load(&words->step) + 1);
    if (overflows != nullptr) store_for_host(overflows, load(&words->overflows));
  }
};

struct CopyWordsKernel : LaunchBounds<32, 1> {
  const StateWords* from;
  const StateWords* gradient;
  StateWords* to;

  template <class Block>
  TERSOR_DEVICE void operator()(const Block& block, Shared&) const {
    if (block.thread_rank() != 0) return;
    const float factor = gradient == nullptr ? 1.0f : load(&gradient->gradient_factor);
    store(&to->step, load(&from->step));
    store(&to->residual_factor, load(&from->residual_factor));
    store(&to->reserved, std::uint32_t{0});
    store(&to->overflows, load(&from->overflows));
    store(&to->gradient_factor, factor);
  }
};

/// Sets all bits to one.
struct SpoilKernel : LaunchBounds<256, 4> {
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
  Queue(stream).launch(MarkKernel{{}, words, counter, false, 0, 0}, 1);
}

/// The sum of squares. Threads add rows of 16 bytes, and a block adds the threads' sums as a tree.
template <typename T>
struct SquaresKernel : LaunchBounds<256, 4> {
  static constexpr unsigned kRow = 16 / sizeof(T);
  struct Shared {
    SharedArray<double, kThreads> sum;
  };

  const T* values;
  std::size_t count;
  bool aligned;
  double* sum;

  template <class Block>
  TERSOR_DEVICE void operator()(const Block& block, Shared& shared) const {
    const unsigned thread = block.thread_rank();
    shared.sum.set(thread, of_thread(block));
    for (unsigned half = kThreads / 2; half != 0; half /= 2) {
      block.sync();
      if (thread < half)
        shared.sum.set(thread, shared.sum.get(thread) + shared.sum.get(thread + half));
    }
    if (thread == 0) atomic_add(sum, shared.sum.get(0));
  }

 private:
  template <class Block>
  TERSOR_DEVICE double of_thread(const Block& block) const {
    const std::size_t threads = std::size_t{block.blocks()} * kThreads;
    std::size_t row = std::size_t{block.rank()} * kThreads + block.thread_rank();
    double squares = 0;
    for (; row * kRow < count; row += threads) {
      float value[kRow];
      load_row<Load::kInput>(values, {row * kRow, count - row * kRow, aligned}, value);
      TERSOR_UNROLL
      for (unsigned i = 0; i < kRow; ++i) squares += double{value[i]} * value[i];
    }
    return squares;
  }
};

template <typename T>
void queue_squares(ConstValueSpan values, double* sum, StreamView stream) {
  using Kernel = SquaresKernel<T>;
  const auto* pointer = reinterpret_cast<const T*>(values.pointer());
  const bool aligned = reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0;
  Queue(stream).launch_tasks(Kernel{{}, pointer, values.count(), aligned, sum},
                             ceil_div(values.count(), std::size_t{Kernel::kRow}), Kernel::kThreads);
}

}  // namespace

void mark_begun(ProgressWords* words, std::chrono::milliseconds timeout, std::uint32_t name,
                StreamView stream) {
  const auto most = std::int64_t{std::numeric_limits<std::uint32_t>::max()};
  const auto timeout_ms =
      static_cast<std::uint32_t>(std::clamp<std::int64_t>(timeout.count(), 0, most));
  Queue(stream).launch(MarkKernel{{}, words, &words->begun, true, timeout_ms, name}, 1);
}

void mark_ended(ProgressWords* words, StreamView stream) { mark(words, &words->ended, stream); }
void mark_signal(ProgressWords* words, StreamView stream) { mark(words, &words->signals, stream); }

void spoil(ByteSpan memory, StreamView stream) {
  const std::size_t count = memory.size() / sizeof(Words128);
  Queue(stream).launch_tasks(SpoilKernel{{}, reinterpret_cast<Words128*>(memory.data()), count},
                             count, SpoilKernel::kThreads);
}

void advance_step(StateWords* words, std::uint64_t* overflows, StreamView stream) {
  Queue(stream).launch(AdvanceStepKernel{{}, words, overflows}, 1);
}

void copy_words(const StateWords* from, const StateWords* gradient, StateWords* to,
                StreamView stream) {
  Queue(stream).launch(CopyWordsKernel{{}, from, gradient, to}, 1);
}

const void* any_kernel() { return reinterpret_cast<const void*>(&run_kernel<MarkKernel>); }

void add_squares(ConstValueSpan values, double* sum, StreamView stream) {
  if (values.count() == 0) return;
  visit_gradient_dtype(values.dtype(),
                       [&]<typename T>(T) { queue_squares<T>(values, sum, stream); });
}

}  // namespace tersor::kernels
