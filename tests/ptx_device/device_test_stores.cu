// Late stores (PTX_DEVICE_STORES=late): the last block of a kernel sums the stores of other blocks.
// The kernel is correct with a fence, and detected as wrong without.
#include "tests/ptx_device/device_testing.h"

#include <numeric>

namespace {

constexpr unsigned kBlocks = 37, kThreads = 64;
constexpr unsigned kExpected = kBlocks * kThreads * (kThreads + 1) / 2;

enum class Fence { kNone, kBeforeBarrier, kAfterBarrier, kByOneThread, kOfBlock };

/// Each thread stores a number. The last block adds the numbers of all threads.
template <Fence kFence>
__global__ void last_block_adds(unsigned* numbers, unsigned* ticket, unsigned* total) {
  __shared__ unsigned place;
  numbers[blockIdx.x * kThreads + threadIdx.x] = threadIdx.x + 1;
  if (kFence == Fence::kBeforeBarrier) __threadfence();
  if (kFence == Fence::kOfBlock) __threadfence_block();
  if (kFence != Fence::kByOneThread) __syncthreads();
  if (kFence == Fence::kAfterBarrier && threadIdx.x == 0) __threadfence();
  if (kFence == Fence::kByOneThread && threadIdx.x == 0) __threadfence();
  if (threadIdx.x == 0) place = atomicAdd(ticket, 1u);
  __syncthreads();
  if (place != kBlocks - 1) return;
  __threadfence();
  unsigned sum = 0;
  for (unsigned i = threadIdx.x; i < kBlocks * kThreads; i += kThreads) sum += __ldcg(numbers + i);
  atomicAdd(total, sum);
}

/// A block passes a number to the next block with a flag.
template <bool kRelease>
__global__ void pass_on(unsigned* numbers, unsigned* flags) {
  unsigned number = 1, flag = 0;
  if (blockIdx.x != 0) {
    while (flag == 0)
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                   : "=r"(flag)
                   : "l"(flags + blockIdx.x - 1)
                   : "memory");
    number = numbers[blockIdx.x - 1] + 1;
  }
  numbers[blockIdx.x] = number;
  if (kRelease)
    asm volatile("st.release.gpu.global.u32 [%0], 1;" ::"l"(flags + blockIdx.x) : "memory");
  else
    *const_cast<volatile unsigned*>(flags + blockIdx.x) = 1;
}

/// A block sees its own stores, regardless of the kind of store.
__global__ void reads_its_own(unsigned* y) {
  auto* bytes = reinterpret_cast<signed char*>(y);
  y[threadIdx.x] = 0x01020304;
  bytes[4 * threadIdx.x + 1] = -7;
  __syncthreads();
  const unsigned other = blockDim.x - 1 - threadIdx.x;
  const int byte = bytes[4 * other + 1];
  const unsigned word = y[other];
  __syncthreads();
  atomicAdd(y + threadIdx.x, word == 0x0102f904 && byte == -7 ? 1u : 1000u);
}

template <Fence kFence>
int add() {
  for (int i = 0; i < 8; ++i) {
    const OnDevice<unsigned> numbers(std::vector<unsigned>(kBlocks * kThreads)), ticket({0}),
        total({0});
    last_block_adds<kFence><<<kBlocks, kThreads>>>(numbers.pointer, ticket.pointer, total.pointer);
    if (const cudaError_t status = cudaDeviceSynchronize(); status != cudaSuccess) return status;
    if (total.host()[0] != kExpected) return 1;
  }
  return 0;
}

template <bool kRelease>
int pass() {
  std::vector<unsigned> zeros(17), expected(17);
  std::iota(expected.begin(), expected.end(), 1u);
  for (int i = 0; i < 8; ++i) {
    const OnDevice<unsigned> numbers(zeros), flags(zeros);
    pass_on<kRelease><<<17, 1>>>(numbers.pointer, flags.pointer);
    if (const cudaError_t status = cudaDeviceSynchronize(); status != cudaSuccess) return status;
    if (numbers.host() != expected) return 1;
  }
  return 0;
}

int read_own() {
  const OnDevice<unsigned> y(std::vector<unsigned>(64));
  reads_its_own<<<1, 64>>>(y.pointer);
  return y.host() == std::vector<unsigned>(64, 0x0102f905) ? 0 : 1;
}

template <class F>
int late(F&& function, const char* strict = "1") {
  return alone(function, {{"PTX_DEVICE_STORES", "late"}, {"PTX_DEVICE_STRICT", strict}});
}

}  // namespace

void test_late_stores() {
  constexpr int kFailed = cudaErrorLaunchFailure % 256;
  EXPECT(late(add<Fence::kBeforeBarrier>) == 0);
  EXPECT(late(add<Fence::kAfterBarrier>) == 0);
  EXPECT(late(pass<true>) == 0);
  EXPECT(late(read_own) == 0);
  // Detected when the other blocks' numbers are read. If detection is not fatal, the sum is wrong.
  EXPECT(late(add<Fence::kNone>) == kFailed);
  EXPECT(late(add<Fence::kOfBlock>) == kFailed);
  EXPECT(late(add<Fence::kByOneThread>) == kFailed);
  EXPECT(late(add<Fence::kNone>, "0") == 1);
  EXPECT(late(pass<false>) == kFailed);
}
