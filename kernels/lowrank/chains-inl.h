// 64 parallel sums that are combined as a tree. Included once per instruction set.
#if defined(TERSOR_KERNELS_LOWRANK_CHAINS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERSOR_KERNELS_LOWRANK_CHAINS_INL_H_
#undef TERSOR_KERNELS_LOWRANK_CHAINS_INL_H_
#else
#define TERSOR_KERNELS_LOWRANK_CHAINS_INL_H_
#endif

#include "kernels/host/rotation-inl.h"
#include "kernels/lowrank/formulas.h"

#include <cstddef>

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {

constexpr std::size_t kChainVectors = kLowrankChains / kLanes;

/// 64 chains: chain l is in lane l mod kLanes of vector l / kLanes.
struct Chains {
  VF32 vectors[kChainVectors];

  HWY_INLINE static Chains zero() {
    Chains chains;
    for (VF32& vector : chains.vectors) vector = hn::Zero(F32());
    return chains;
  }
  template <typename T>
  HWY_INLINE static Chains of(const T* values) {
    Chains chains;
    for (std::size_t k = 0; k < kChainVectors; ++k)
      chains.vectors[k] = load_values(values + k * kLanes);
    return chains;
  }
  template <typename T>
  HWY_INLINE void store(T* values) const {
    for (std::size_t k = 0; k < kChainVectors; ++k) store_values(vectors[k], values + k * kLanes);
  }
  /// this + a · b, lane by lane.
  HWY_INLINE void add(const Chains& a, const float* b) {
    for (std::size_t k = 0; k < kChainVectors; ++k)
      vectors[k] = fused(a.vectors[k], load_values(b + k * kLanes), vectors[k]);
  }
  /// this + a · b, with a scalar b.
  HWY_INLINE void add(const float* a, float b) {
    const VF32 factor = hn::Set(F32(), b);
    for (std::size_t k = 0; k < kChainVectors; ++k)
      vectors[k] = fused(load_values(a + k * kLanes), factor, vectors[k]);
  }
  HWY_INLINE void add(const float* a) {
    for (std::size_t k = 0; k < kChainVectors; ++k)
      vectors[k] = hn::Add(vectors[k], load_values(a + k * kLanes));
  }
  HWY_INLINE void scale(float factor) {
    for (VF32& vector : vectors) vector = hn::Mul(vector, hn::Set(F32(), factor));
  }
  HWY_INLINE float sum() const {
    Chains tree = *this;
    for (std::size_t half = kChainVectors / 2; half != 0; half /= 2)
      for (std::size_t k = 0; k < half; ++k)
        tree.vectors[k] = hn::Add(tree.vectors[k], tree.vectors[k + half]);
    return hn::GetLane(tree_sum_within<kLanes / 2>(tree.vectors[0]));
  }
};

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TERSOR_KERNELS_LOWRANK_CHAINS_INL_H_
