// See squares.h. Threads add rows of 16 bytes; a block adds its threads' sums as a tree.

#include "kernels/device/queue.cuh"
#include "kernels/device/row.cuh"
#include "kernels/device/squares.h"

#include <tersor/align.h>

#include <cstddef>

namespace tersor::kernels {
namespace {

template <typename T>
struct SquaresKernel {
  static constexpr unsigned kThreads = 256;
  static constexpr unsigned kResident = 4;
  static constexpr bool kScans = false;
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
  Queue queue(stream);
  queue.launch(
      Kernel{pointer, values.count(), reinterpret_cast<std::uintptr_t>(pointer) % 16 == 0, sum},
      queue.blocks_for<Kernel>(ceil_div(values.count(), std::size_t{Kernel::kRow}),
                               Kernel::kThreads));
}

}  // namespace

void add_squares(ConstValueSpan values, double* sum, StreamView stream) {
  if (values.count() == 0) return;
  visit_gradient_dtype(values.dtype(),
                       [&]<typename T>(T) { queue_squares<T>(values, sum, stream); });
}

}  // namespace tersor::kernels
