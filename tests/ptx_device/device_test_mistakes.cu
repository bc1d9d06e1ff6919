// Kernels with a mistake each. Every mistake must be detected. A mistake breaks the device, and
// each kernel runs in a separate process.
#include "tests/ptx_device/device_testing.h"

namespace {

__global__ void past_the_end(float* y, unsigned count) { y[count] = 1; }
__global__ void misaligned(char* y) { *reinterpret_cast<int*>(y + 2) = 1; }
__global__ void foreign_mask() {
  if (threadIdx.x == 41) __syncwarp(1u << 11 | 1u << 10);
}
__global__ void too_much_shared(int* y, int at) {
  __shared__ int part[16];
  if (threadIdx.x < 16) part[threadIdx.x] = 1;
  __syncthreads();
  *y = part[at];
}
/// Missing barrier: correct only if the warps happen to run in order.
__global__ void missing_barrier(int* y) {
  __shared__ int part[256];
  part[threadIdx.x] = static_cast<int>(threadIdx.x);
  y[threadIdx.x] = part[255 - threadIdx.x];
}
/// All threads of a warp read the same address, and one thread writes there.
template <bool kSyncs>
__global__ void rewritten_place(int* y) {
  __shared__ int place[8];
  const unsigned warp = threadIdx.x / 32;
  for (int turn = 0; turn < 3; ++turn) {
    if (threadIdx.x % 32 == 7) place[warp] = turn;
    __syncwarp();
    y[threadIdx.x] += place[warp];
    if (kSyncs) __syncwarp();
  }
}
/// Each warp copies words to shared memory, one group of copies ahead of the words that it reads.
/// kPending: the groups still under way when the warp reads.
template <int kPending, bool kSyncs>
__global__ void copies_ahead(const float* x, float* y) {
  __shared__ float words[2][64];
  const unsigned thread = threadIdx.x;
  const auto start = [&](unsigned turn) {
    const auto to = static_cast<unsigned>(__cvta_generic_to_shared(&words[turn % 2][thread]));
    if (turn < 4)
      asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(x + turn * 64 + thread)
                   : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
  };
  start(0);
  for (unsigned turn = 0; turn < 4; ++turn) {
    start(turn + 1);
    asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
    if (kSyncs) __syncwarp();
    y[turn * 64 + thread] = words[turn % 2][thread ^ 1];
    if (kSyncs) __syncwarp();
  }
}
__global__ void reads_what_nobody_wrote(const int* x, int* y) { y[threadIdx.x] = x[threadIdx.x]; }
__global__ void nothing() {}

}  // namespace

void test_mistakes() {
  const auto broken = [](auto&& launch) {
    return alone([&] {
      float* y = nullptr;
      cudaMalloc(&y, 4096);
      cudaMemset(y, 0, 4096);
      launch(y);
      return static_cast<int>(cudaDeviceSynchronize());
    });
  };
  EXPECT(broken([](float* y) { past_the_end<<<1, 1>>>(y, 1024); }) ==
         cudaErrorIllegalAddress % 256);
  EXPECT(broken([](float* y) { past_the_end<<<1, 1>>>(y, 1023); }) == cudaSuccess);
  EXPECT(broken([](float* y) { misaligned<<<1, 1>>>(reinterpret_cast<char*>(y)); }) ==
         cudaErrorMisalignedAddress % 256);
  EXPECT(broken([](float*) { foreign_mask<<<1, 64>>>(); }) == cudaErrorIllegalInstruction % 256);
  EXPECT(broken([](float* y) { too_much_shared<<<1, 64>>>(reinterpret_cast<int*>(y), 16); }) ==
         cudaErrorIllegalAddress % 256);
  EXPECT(broken([](float* y) { missing_barrier<<<1, 256>>>(reinterpret_cast<int*>(y)); }) ==
         cudaErrorLaunchFailure % 256);
  EXPECT(broken([](float* y) { rewritten_place<true><<<1, 64>>>(reinterpret_cast<int*>(y)); }) ==
         cudaSuccess);
  EXPECT(broken([](float* y) { rewritten_place<false><<<1, 64>>>(reinterpret_cast<int*>(y)); }) ==
         cudaErrorLaunchFailure % 256);
  EXPECT(broken([](float* y) {
           int* x = nullptr;
           cudaMalloc(&x, 256);
           reads_what_nobody_wrote<<<1, 64>>>(x, reinterpret_cast<int*>(y));
         }) == cudaErrorLaunchFailure % 256);
  const auto copied = [&](auto&& kernel) {
    return broken([&](float* y) {
      float numbers[512];
      for (int i = 0; i < 256; ++i) numbers[i] = static_cast<float>(i), numbers[256 + i] = 0;
      cudaMemcpy(y, numbers, sizeof numbers, cudaMemcpyHostToDevice);
      kernel<<<1, 64>>>(y, y + 256);
      cudaMemcpy(numbers, y, sizeof numbers, cudaMemcpyDeviceToHost);
      for (int i = 0; i < 256; ++i)
        if (numbers[256 + i] != static_cast<float>(i ^ 1)) std::exit(1);
    });
  };
  EXPECT(copied(copies_ahead<1, true>) == cudaSuccess);
  EXPECT(copied(copies_ahead<2, true>) != cudaSuccess);   // reads before the copies arrive
  EXPECT(copied(copies_ahead<1, false>) != cudaSuccess);  // another thread's copies
  EXPECT(alone([] {
           volatile int* y = nullptr;
           cudaMalloc(const_cast<int**>(&y), 64);
           return *y;  // the host cannot access device memory
         }) == -1);
  EXPECT(alone([] {
           nothing<<<1, 2048>>>();
           return static_cast<int>(cudaGetLastError());
         }) == cudaErrorInvalidConfiguration);
}
