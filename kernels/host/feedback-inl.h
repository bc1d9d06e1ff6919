// p = a · g + b · e, vector by vector, for any gradient dtype and any or no residual.
#if defined(TERSOR_KERNELS_HOST_FEEDBACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERSOR_KERNELS_HOST_FEEDBACK_INL_H_
#undef TERSOR_KERNELS_HOST_FEEDBACK_INL_H_
#else
#define TERSOR_KERNELS_HOST_FEEDBACK_INL_H_
#endif

#include "kernels/host/tiles-inl.h"

#include <tersor/error.h>

#include <string>

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {

/// Calls `visitor(E{})` with the residual type: float, Bf16, or NoValues without a residual.
template <typename Visitor>
decltype(auto) visit_residual(const ErrorFeedback& feedback, Visitor&& visitor) {
  if (feedback.residual_in == nullptr) return visitor(NoValues{});
  if (feedback.dtype == Dtype::kF32) return visitor(float{});
  if (feedback.dtype == Dtype::kBf16) return visitor(Bf16{});
  throw InvalidArgumentError("residuals are f32 or bf16, not " +
                             std::string(dtype_name(feedback.dtype)));
}

/// Calls `visitor(G{}, E{})` with the types of gradient and residual. `sent` is an EncodeInput, or
/// has the same members `dtype` and `feedback`.
template <class Sent, typename Visitor>
decltype(auto) visit_sent(const Sent& sent, Visitor&& visitor) {
  return visit_gradient_dtype(sent.dtype, [&]<typename G>(G) {
    return visit_residual(sent.feedback, [&]<typename E>(E) { return visitor(G{}, E{}); });
  });
}

/// Returns how to store the residual. An in-place residual is already in the cache.
inline Store residual_store(const ErrorFeedback& feedback) {
  return feedback.residual_in == feedback.residual_out ? Store::kCached : feedback.store;
}

/// The two factors, broadcast to all lanes.
struct Factors {
  explicit Factors(const ErrorFeedback& feedback)
      : gradient(hn::Set(F32(), feedback.gradient_factor)),
        residual(hn::Set(F32(), feedback.residual_factor)) {}

  VF32 gradient, residual;
};

/// sum + b · e
template <typename E>
HWY_INLINE VF32 add_residual(VF32 sum, const E* residual, const Factors& factors) {
  return hn::Add(sum, hn::Mul(factors.residual, load_values(residual)));
}
HWY_INLINE VF32 add_residual(VF32 sum, NoValues, const Factors&) { return sum; }

/// a · g + b · e
template <typename G, typename E>
HWY_INLINE VF32 with_feedback(const G* gradient, const E* residual, const Factors& factors) {
  return add_residual(hn::Mul(factors.gradient, load_values(gradient)), residual, factors);
}
template <typename G>
HWY_INLINE VF32 with_feedback(const G* gradient, NoValues, const Factors&) {
  return load_values(gradient);
}

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TERSOR_KERNELS_HOST_FEEDBACK_INL_H_
