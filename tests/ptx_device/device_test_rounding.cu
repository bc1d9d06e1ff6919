// Rounding modes other than nearest, compared with the host, and rarely used bit operations.
#include "tests/ptx_device/device_testing.h"

#include <cfenv>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace {

constexpr int kModes[] = {FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD, FE_UPWARD};
constexpr unsigned kCount = 4 * 7;

template <class T>
struct Numbers {
  T a, b, c;
};

#define ROUND_ALL(ROUND, TYPE, AT)                               \
  to[(AT)*7 + 0] = __##TYPE##add_##ROUND(x.a, x.b);              \
  to[(AT)*7 + 1] = __##TYPE##add_##ROUND(x.a, -x.b);             \
  to[(AT)*7 + 2] = __##TYPE##mul_##ROUND(x.a, x.b);              \
  to[(AT)*7 + 4] = __##TYPE##div_##ROUND(x.a, x.b);              \
  to[(AT)*7 + 5] = __##TYPE##sqrt_##ROUND(x.a < 0 ? -x.a : x.a); \
  to[(AT)*7 + 6] = __##TYPE##rcp_##ROUND(x.b);

__global__ void round_floats(const Numbers<float>* numbers, float* results) {
  const Numbers<float> x = numbers[threadIdx.x];
  float* to = results + threadIdx.x * kCount;
  ROUND_ALL(rn, f, 0)
  ROUND_ALL(rz, f, 1)
  ROUND_ALL(rd, f, 2)
  ROUND_ALL(ru, f, 3)
  to[3] = __fmaf_rn(x.a, x.b, x.c);
  to[10] = __fmaf_rz(x.a, x.b, x.c);
  to[17] = __fmaf_rd(x.a, x.b, x.c);
  to[24] = __fmaf_ru(x.a, x.b, x.c);
}
__global__ void round_doubles(const Numbers<double>* numbers, double* results) {
  const Numbers<double> x = numbers[threadIdx.x];
  double* to = results + threadIdx.x * kCount;
  ROUND_ALL(rn, d, 0)
  ROUND_ALL(rz, d, 1)
  ROUND_ALL(rd, d, 2)
  ROUND_ALL(ru, d, 3)
  to[3] = __fma_rn(x.a, x.b, x.c);
  to[10] = __fma_rz(x.a, x.b, x.c);
  to[17] = __fma_rd(x.a, x.b, x.c);
  to[24] = __fma_ru(x.a, x.b, x.c);
}

/// The host's results with the same order of operations.
template <class T>
std::vector<T> on_the_host(const Numbers<T>& numbers) {
  std::vector<T> results;
  for (const int mode : kModes) {
    std::fesetround(mode);
    volatile T a = numbers.a, b = numbers.b, c = numbers.c, one = 1, minus = -numbers.b;
    for (const T value : {T(a + b), T(a + minus), T(a * b), T(std::fma(a, b, c)), T(a / b),
                          T(std::sqrt(std::fabs(a))), T(one / b)})
      results.push_back(value);
    std::fesetround(FE_TONEAREST);
  }
  return results;
}

template <class T>
std::vector<Numbers<T>> some_numbers() {
  constexpr T kLeast = std::numeric_limits<T>::denorm_min(), kMost = std::numeric_limits<T>::max();
  std::vector<Numbers<T>> numbers = {{1, 3, -1},          {kLeast, T(0.5), kLeast},
                                     {kMost, kMost, -1},  {-kMost, T(1.5), 1},
                                     {T(0.1), T(0.2), 7}, {-T(0.1), T(1e-20), T(1e10)}};
  std::uint64_t random = 88172645463325252u;
  const auto draw = [&] {
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    return static_cast<T>(std::ldexp(static_cast<double>(static_cast<std::int64_t>(random)),
                                     static_cast<int>(random >> 20 & 63) - 90));
  };
  while (numbers.size() < 64) numbers.push_back({draw(), draw(), draw()});
  return numbers;
}

template <class T>
void test_arithmetic(void (*kernel)(const Numbers<T>*, T*)) {
  const std::vector<Numbers<T>> numbers = some_numbers<T>();
  const OnDevice<Numbers<T>> from(numbers);
  const OnDevice<T> to(std::vector<T>(64 * kCount));
  kernel<<<1, 64>>>(from.pointer, to.pointer);
  const std::vector<T> found = to.host();
  for (unsigned i = 0; i < 64; ++i) {
    const std::vector<T> expected = on_the_host(numbers[i]);
    EXPECT(std::memcmp(found.data() + i * kCount, expected.data(), kCount * sizeof(T)) == 0);
  }
}

__global__ void convert(float* f, unsigned* halves, unsigned* masks) {
  f[0] = __double2float_rz(0.1);
  f[1] = __double2float_ru(0.1);
  f[2] = __int2float_rd(0);
  f[3] = __int2float_rd(-16777217);
  f[4] = __uint2float_ru(0xffffffffu);
  f[5] = __ull2float_rz(0xffffffffffffffffull);
  unsigned short half;
  asm volatile("cvt.rm.f16.f32 %0, %1;" : "=h"(half) : "f"(-1e-9f));
  halves[0] = half;
  asm volatile("cvt.rp.f16.f32 %0, %1;" : "=h"(half) : "f"(1.0001f));
  halves[1] = half;
  asm volatile("cvt.rz.f16.f32 %0, %1;" : "=h"(half) : "f"(70000.0f));
  halves[2] = half;
  asm volatile("cvt.rz.bf16x2.f32 %0, %1, %2;" : "=r"(halves[3]) : "f"(1.999f), "f"(-1.999f));
  asm volatile("bmsk.clamp.b32 %0, %1, %2;" : "=r"(masks[0]) : "r"(4), "r"(8));
  asm volatile("bmsk.clamp.b32 %0, %1, %2;" : "=r"(masks[1]) : "r"(20), "r"(40));
  asm volatile("bmsk.clamp.b32 %0, %1, %2;" : "=r"(masks[2]) : "r"(33), "r"(2));
  asm volatile("bmsk.wrap.b32 %0, %1, %2;" : "=r"(masks[3]) : "r"(33), "r"(2));
}

void test_conversions() {
  const OnDevice<float> f(std::vector<float>(6));
  const OnDevice<unsigned> halves(std::vector<unsigned>(4)), masks(std::vector<unsigned>(4));
  convert<<<1, 1>>>(f.pointer, halves.pointer, masks.pointer);
  EXPECT(f.host() == std::vector<float>{0x1.999998p-4f, 0x1.99999ap-4f, 0, -16777218.0f,
                                        4294967296.0f, 0x1.fffffep63f});
  EXPECT(!std::signbit(f.host()[2]));
  EXPECT(halves.host() == std::vector<unsigned>{0x8001, 0x3c01, 0x7bff, 0x3fffbfff});
  EXPECT(masks.host() == std::vector<unsigned>{0xff0, 0xfff00000, 0, 6});
}

__global__ void find_extremes(const float* a, const float* b, float* most, float* least) {
  asm volatile("max.NaN.f32 %0, %1, %2;"
               : "=f"(most[threadIdx.x])
               : "f"(a[threadIdx.x]), "f"(b[threadIdx.x]));
  asm volatile("min.NaN.f32 %0, %1, %2;"
               : "=f"(least[threadIdx.x])
               : "f"(a[threadIdx.x]), "f"(b[threadIdx.x]));
}

/// The larger ones of pairs of bf16 and of f16, and bf16 without .NaN.
__global__ void find_larger_halves(unsigned* most, unsigned a, unsigned b) {
  asm volatile("max.NaN.bf16x2 %0, %1, %2;" : "=r"(most[0]) : "r"(a), "r"(b));
  asm volatile("max.NaN.f16x2 %0, %1, %2;" : "=r"(most[1]) : "r"(a), "r"(b));
  asm volatile("max.bf16x2 %0, %1, %2;" : "=r"(most[2]) : "r"(a), "r"(b));
}

void test_extremes() {
  const float nan = -std::numeric_limits<float>::quiet_NaN();
  const OnDevice<float> a(std::vector<float>{1, nan, -3, nan, -0.0f}),
      b(std::vector<float>{2, 1, nan, nan, 0});
  const OnDevice<unsigned> most(std::vector<unsigned>(5)), least(std::vector<unsigned>(5));
  find_extremes<<<1, 5>>>(a.pointer, b.pointer, reinterpret_cast<float*>(most.pointer),
                          reinterpret_cast<float*>(least.pointer));
  EXPECT(most.host() == std::vector<unsigned>{0x40000000, 0x7fffffff, 0x7fffffff, 0x7fffffff, 0});
  EXPECT(least.host() ==
         std::vector<unsigned>{0x3f800000, 0x7fffffff, 0x7fffffff, 0x7fffffff, 0x80000000});
  const OnDevice<unsigned> halves(std::vector<unsigned>(3));
  find_larger_halves<<<1, 1>>>(halves.pointer, 0x3f807fc1, 0x40003f80);
  EXPECT(halves.host() == std::vector<unsigned>{0x40007fff, 0x40007fff, 0x40003f80});
}

}  // namespace

void test_rounding() {
  test_arithmetic<float>(round_floats);
  test_arithmetic<double>(round_doubles);
  test_conversions();
  test_extremes();
}
