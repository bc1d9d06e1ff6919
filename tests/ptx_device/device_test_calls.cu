// Functions called by kernels: values, structures and local memory as parameters, nested calls, and
// calls by some threads only. Also unsupported calls.
#undef NDEBUG
#include "tests/ptx_device/device_testing.h"

#include <cassert>
#include <fstream>
#include <iterator>
#include <string>

namespace {

struct Three {
  int a;
  double b;
  unsigned char c[5];
};

__device__ __noinline__ int collatz(unsigned n) {
  int steps = 0;
  while (n != 1) {
    if (n > 1'000'000) return -1;
    n = n % 2 == 0 ? n / 2 : 3 * n + 1;
    ++steps;
  }
  return steps;
}

__device__ __noinline__ Three combine(Three x, const int* numbers, int count) {
  for (int i = 0; i < count; ++i) x.a += numbers[i];
  x.b *= collatz(static_cast<unsigned>(count));
  x.c[4] = static_cast<unsigned char>(x.c[0] + 1);
  return x;
}

__device__ __noinline__ void store(int* to, int value) { *to = value; }

__global__ void call(int* a, double* b, unsigned* c) {
  const unsigned i = threadIdx.x;
  int numbers[4];
  for (int k = 0; k < 4; ++k) numbers[(k + i) % 4] = static_cast<int>(i) * k;
  Three x{1, 0.5, {static_cast<unsigned char>(i), 0, 0, 0, 0}};
  if (i % 3 != 0) x = combine(x, numbers, 3 + static_cast<int>(i % 2));
  store(a + i, x.a + collatz(i + 1));
  b[i] = x.b;
  c[i] = x.c[4];
}

void test_values() {
  const OnDevice<int> a(std::vector<int>(64));
  const OnDevice<double> b(std::vector<double>(64));
  const OnDevice<unsigned> c(std::vector<unsigned>(64));
  call<<<1, 64>>>(a.pointer, b.pointer, c.pointer);
  EXPECT(cudaDeviceSynchronize() == cudaSuccess);
  const auto steps = [](unsigned n) {
    int count = 0;
    for (; n != 1; ++count) n = n % 2 == 0 ? n / 2 : 3 * n + 1;
    return count;
  };
  bool same = true;
  for (int i = 0; i < 64; ++i) {
    int sum = 1, count = 3 + i % 2;
    for (int k = 0; k < 4; ++k)
      if ((k + i) % 4 < count) sum += i * k;
    const bool called = i % 3 != 0;
    same = same && a.host()[i] == (called ? sum : 1) + steps(i + 1);
    same = same && b.host()[i] == (called ? 0.5 * steps(count) : 0.5);
    same = same && c.host()[i] == (called ? i + 1u : 0u);
  }
  EXPECT(same);
}

__device__ __noinline__ unsigned down(unsigned n) {
  return n < 2 ? 1 : down(n - 1) * n + down(n / 2);
}
__global__ void recurse(unsigned* y) { *y = down(*y); }

using Function = unsigned (*)(unsigned);
__device__ __noinline__ unsigned twice(unsigned n) { return 2 * n; }
__device__ __noinline__ unsigned thrice(unsigned n) { return 3 * n; }
__device__ Function functions[2] = {twice, thrice};
__global__ void call_indirectly(unsigned* y) { *y = functions[*y % 2](*y); }

template <class F>
int status_of(F&& launch) {
  return alone([&] {
    const OnDevice<unsigned> y({5});
    launch(y.pointer);
    return static_cast<int>(cudaDeviceSynchronize());
  });
}
template <class F>
bool is_refused(F&& launch) {
  return status_of(launch) != cudaSuccess;
}

__global__ void say(const unsigned* x) {
  printf("%s %d of %u: %5.2f %lld%%\n", threadIdx.x == 0 ? "first" : "second", threadIdx.x, x[0],
         1.5, -(1ll << 40));
}
__global__ void check(const unsigned* x) { assert(x[0] == 4); }

/// The output of a kernel's printf, from a separate process.
std::string printed() {
  char name[] = "/tmp/ptx_device_XXXXXX";
  close(mkstemp(name));
  const int status = alone([&] {
    if (std::freopen(name, "w", stdout) == nullptr) return 1;
    const OnDevice<unsigned> x({2});
    say<<<1, 2>>>(x.pointer);
    const cudaError_t status = cudaDeviceSynchronize();
    std::fflush(stdout);
    return static_cast<int>(status);
  });
  std::ifstream in(name);
  const std::string text(std::istreambuf_iterator<char>(in), {});
  unlink(name);
  return status == 0 ? text : "";
}

}  // namespace

void test_calls() { test_values(); }

void test_refusals() {
  EXPECT(is_refused([](unsigned* y) { recurse<<<1, 1>>>(y); }));
  const std::string first = "first 0 of 2:  1.50 -1099511627776%\n",
                    second = "second 1 of 2:  1.50 -1099511627776%\n", both = printed();
  EXPECT(both == first + second || both == second + first);
  EXPECT(status_of([](unsigned* y) { check<<<1, 1>>>(y); }) == cudaErrorAssert % 256);
  EXPECT(is_refused([](unsigned* y) { call_indirectly<<<1, 1>>>(y); }));
}
