// The basic operations of all formulas, for g++ and for nvcc: bit casts, fused multiply-add, exact
// reciprocal and quotient. No other operation in this file or in the formulas may be fused.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

// TERSOR_BODY marks formulas, compiled for hosts and devices. TERSOR_DEVICE marks functions called
// only by kernels: device code under nvcc, plain functions under g++. Put TERSOR_KEEP_LOOP before a
// loop that usually runs once or is rarely reached. A copy of the loop's body would cost more than
// a jump.
#if defined(__CUDACC__)
#define TERSOR_BODY __host__ __device__ __forceinline__
#define TERSOR_DEVICE __device__ __forceinline__
#define TERSOR_UNROLL _Pragma("unroll")
#define TERSOR_UNROLL_4 _Pragma("unroll 4")
#define TERSOR_UNROLL_2 _Pragma("unroll 2")
#else
#define TERSOR_BODY inline
#define TERSOR_DEVICE inline
#define TERSOR_UNROLL _Pragma("GCC unroll 32")
#define TERSOR_UNROLL_4 _Pragma("GCC unroll 4")
#define TERSOR_UNROLL_2 _Pragma("GCC unroll 2")
#endif
#if defined(__CUDA_ARCH__)
#define TERSOR_KEEP_LOOP _Pragma("unroll 1")
#else
#define TERSOR_KEEP_LOOP
#endif

namespace tersor::kernels {

/// The bits of positive infinity in f32. Larger values without sign are NaNs.
constexpr std::uint32_t kInfinityBits = 0x7f800000u;

/// The NaN that formulas write into an f32.
constexpr std::uint32_t kNanBits = 0x7fc00000u;

TERSOR_BODY std::uint32_t bits_of(float value) {
#if defined(__CUDA_ARCH__)
  return __float_as_uint(value);
#else
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
#endif
}

TERSOR_BODY float float_of(std::uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return __uint_as_float(bits);
#else
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
#endif
}

/// Returns the bits without sign. As integers, these bits order magnitudes, with NaNs above
/// infinity.
TERSOR_BODY std::uint32_t magnitude_bits(float value) { return bits_of(value) & 0x7fffffffu; }

TERSOR_BODY bool is_finite(float value) { return magnitude_bits(value) < kInfinityBits; }

/// Returns the number of set bits.
TERSOR_BODY unsigned count_bits(std::uint32_t bits) {
#if defined(__CUDA_ARCH__)
  return static_cast<unsigned>(__popc(bits));
#else
  return static_cast<unsigned>(__builtin_popcount(bits));
#endif
}

/// a · b + c, rounded once.
TERSOR_BODY float fused_multiply_add(float a, float b, float c) {
#if defined(__CUDA_ARCH__)
  return __fmaf_rn(a, b, c);
#else
  return std::fma(a, b, c);
#endif
}

/// 1 / value, rounded as in IEEE division.
TERSOR_BODY float reciprocal(float value) {
#if defined(__CUDA_ARCH__)
  return __frcp_rn(value);
#else
  return 1.0f / value;
#endif
}

/// a / b, rounded once.
TERSOR_BODY float quotient(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fdiv_rn(a, b);
#else
  return a / b;
#endif
}

}  // namespace tersor::kernels
