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
