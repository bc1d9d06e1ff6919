// The instruction sets that Highway generates. Include this before any header of Highway's.
// Sets without a fused multiply-add (SSE) are left out, and so are those that would only repeat
// AVX-512 or NEON: portable (Highway's scalar or emulated base line), AVX2, AVX-512, NEON.
#pragma once

// HWY_AVX3, HWY_AVX2, HWY_NEON, HWY_NEON_WITHOUT_AES, HWY_EMU128, HWY_SCALAR, by their bits, since
// not every version of Highway names them all.
#ifdef TERSOR_FEWER_KERNELS
#define TERSOR_HWY_AVX3 0LL
#else
#define TERSOR_HWY_AVX3 (1LL << 8)
#endif
#define TERSOR_HWY_TARGETS \
  (TERSOR_HWY_AVX3 | (1LL << 9) | (1LL << 28) | (1LL << 29) | (1LL << 61) | (1LL << 62))
#ifdef HWY_DISABLED_TARGETS
#error "kernels/host/targets.h comes before every header of Highway's"
#endif
#define HWY_DISABLED_TARGETS (~TERSOR_HWY_TARGETS)
