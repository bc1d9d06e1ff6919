// The two functions of Highway's library that its headers call. Compiled into the modules where
// Highway is found as a shared library only, as on Debian: a wheel must not ask for that library on
// the machine that it is installed on. Of the sets that kernels/host/targets.h names.
#include "kernels/host/targets.h"

#include <hwy/targets.h>

#include <cstdint>

namespace hwy {
namespace {

#if HWY_ARCH_X86
/// All that Highway compiles its AVX2 code for.
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
         __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("aes");
}

/// Likewise; asks the operating system too whether it keeps the wide registers.
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
/// What every CPU has that the compiler was told of: on Arm's 64 bits NEON.
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
