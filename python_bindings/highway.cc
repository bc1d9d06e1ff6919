// Defines the two library functions that Highway's headers call, for the instruction sets of
// kernels/host/targets.h. The modules compile this file if only a shared Highway library is
// installed, as on Debian, because a wheel must not need a Highway library on the user's machine.
#include "kernels/host/targets.h"

#include <hwy/targets.h>

#include <cstdint>

namespace hwy {
namespace {

#if HWY_ARCH_X86
/// True if the CPU has all features that Highway's AVX2 code uses.
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
         __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("aes");
}

/// True if the CPU has all features that Highway's AVX-512 code uses, and the operating system
/// saves the 512-bit registers.
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512cd") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512bw");
}

std::int64_t detected_targets() {
  __builtin_cpu_init();
  return (has_avx2() ? HWY_AVX2 : 0) | (has_avx512() ? HWY_AVX3 : 0) | HWY_STATIC_TARGET;
}
#else
/// Returns the instruction sets of the compiler's target: NEON on 64-bit Arm.
std::int64_t detected_targets() { return HWY_STATIC_TARGET; }
#endif

}  // namespace

std::int64_t SupportedTargets() {
  static const std::int64_t targets = detected_targets();
  return targets;
}

ChosenTarget& GetChosenTarget() {
  static ChosenTarget chosen;
  return chosen;
}

}  // namespace hwy
