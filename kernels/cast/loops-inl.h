// The loops of all cast formats for one instruction set. `Wire` is float, Bf16 or F16.
#if defined(TERSOR_KERNELS_CAST_LOOPS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TERSOR_KERNELS_CAST_LOOPS_INL_H_
#undef TERSOR_KERNELS_CAST_LOOPS_INL_H_
#else
#define TERSOR_KERNELS_CAST_LOOPS_INL_H_
#endif

#include "kernels/cast/formats.h"
#include "kernels/cast/kernels.h"
#include "kernels/host/feedback-inl.h"
#include "kernels/host/noise-inl.h"
#include "kernels/scalar/float_mode.h"

#include <type_traits>

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {

constexpr std::size_t kTile = 256;  // values

HWY_INLINE auto finite(VF32 value) {
  return hn::Lt(hn::Abs(value), hn::Set(F32(), float_of(kInfinityBits)));
}

/// Returns the number of finite values outside the range of f16.
HWY_INLINE std::size_t f16_overflows(VF32 value) {
  const auto large = hn::Ge(hn::Abs(value), hn::Set(F32(), float_of(kF16OverflowBits)));
  return hn::CountTrue(F32(), hn::And(large, finite(value)));
}

HWY_INLINE void store_wire(VF32 value, float* wire) {
  store_values(with_nan(value, kNanBits), wire);
}
HWY_INLINE void store_wire(VF32 value, Bf16* wire) { store_values(value, wire); }
HWY_INLINE void store_wire(VF32 value, F16* wire) {
  store_values(value, reinterpret_cast<IeeeF16*>(wire));
}

/// Replaces the noise if values are rounded to nearest.
struct NoNoise {
  explicit NoNoise(const Noise&) {}
};

/// Calls the visitor with the type of a call's noise. If rounding cannot change values, the type is
/// NoNoise.
template <bool kUsesNoise, typename Visitor>
decltype(auto) visit_cast_noise(const Noise& noise, Visitor&& visitor) {
  if constexpr (kUsesNoise)
    if (noise.rounding == Rounding::kStochastic) return visitor(std::type_identity<WideNoise>{});
  return visitor(std::type_identity<NoNoise>{});
}

/// Writes p as wire values, tile by tile, and the residual.
template <typename Wire, typename E, class Random>
class CastWriter {
 public:
  CastWriter(const CastOutput& output, const ErrorFeedback& feedback, const Noise& noise,
             std::size_t count)
      : random_(noise),
        residuals_(feedback.residual_in, count),
        wire_(output.values, output.store, output.words),
        residual_(feedback.residual_out, residual_store(feedback)) {}

  /// Writes the `count` values at `first`. value(index, residual) returns p.
  template <class Value>
  HWY_INLINE void write(std::size_t first, std::size_t count, Value&& value) {
    const Pointer<const E> old = residuals_.tile(first);
    Wire* wire = wire_.tile(count);
    const Pointer<E> residual = residual_.tile(count);
    if constexpr (kRandom) random_.prepare(first, kTile);
    for (std::size_t i = 0; i < kTile; i += kLanes) {
      const VF32 p = value(i, old + i);
      if constexpr (std::is_same_v<Wire, F16>) overflows_ += f16_overflows(p);
      if constexpr (kRandom)
        store_stochastic(p, random_.at(i), wire + i);
      else
        store_wire(p, wire + i);
      if constexpr (!std::is_same_v<E, NoValues>) {
        const VF32 decoded = load_values(wire + i);
        const VF32 left = hn::Sub(p, decoded);
        store_values(hn::IfThenElse(finite(decoded), left, load_values(old + i)), residual + i);
      }
    }
    wire_.commit(count);
    residual_.commit(count);
  }

  std::size_t overflows() const { return overflows_; }

 private:
  static constexpr bool kRandom = !std::is_same_v<Random, NoNoise>;

  Random random_;
  Input<E, kTile> residuals_;
  Output<Wire, kTile, StreamSum> wire_;
  Output<E, kTile> residual_;
  std::size_t overflows_ = 0;
};

template <typename Wire, typename G, typename E, class Random = NoNoise>
std::size_t cast_encode_range(const CastEncode& arguments) {
  const EncodeInput& sent = arguments.sent;
  const Factors factors(sent.feedback);
  const VF32 factor = hn::Set(F32(), arguments.factor);
  Input<G, kTile> gradients(sent.gradient, sent.count);
  CastWriter<Wire, E, Random> writer(arguments.output, sent.feedback, arguments.noise, sent.count);
  for (std::size_t first = 0; first < sent.count; first += kTile) {
    const G* gradient = gradients.tile(first);
    writer.write(first, std::min(kTile, sent.count - first),
                 [&](std::size_t i, Pointer<const E> residual) HWY_ATTR {
                   const VF32 p = with_feedback(gradient + i, residual, factors);
                   return std::is_same_v<E, NoValues> ? hn::Mul(p, factor) : p;
                 });
  }
  return writer.overflows();
}

/// sum[i] = update(value, sum[i]) over a tile of a payload.
template <typename Wire, class Update>
HWY_INLINE void add_tile(const void* payload, std::size_t first, std::size_t count, float* sums,
                         Update&& update) {
  Input<Wire, kTile> values(static_cast<const Wire*>(payload) + first, count);
  const Wire* tile = values.tile(0);
  for (std::size_t i = 0; i < kTile; i += kLanes)
    hn::Store(update(load_values(tile + i), hn::Load(F32(), sums + i)), F32(), sums + i);
}

template <typename Wire, typename E, class Random>
std::size_t cast_reduce_range(const CastReduce& arguments) {
  const Factors factors(arguments.feedback);
  const VF32 factor = hn::Set(F32(), arguments.factor);
  CastWriter<Wire, E, Random> writer(arguments.output, arguments.feedback, arguments.noise,
                                     arguments.count);
  alignas(kCacheLine) float sums[kTile];
  for (std::size_t first = 0; first < arguments.count; first += kTile) {
    const std::size_t count = std::min(kTile, arguments.count - first);
    std::fill_n(sums, kTile, 0.0f);
    for (const void* payload : arguments.payloads)
      add_tile<Wire>(payload, first, count, sums,
                     [&](VF32 value, VF32 sum) HWY_ATTR { return fused(value, factor, sum); });
    writer.write(first, count, [&](std::size_t i, Pointer<const E> residual) HWY_ATTR {
      return add_residual(hn::Load(F32(), sums + i), residual, factors);
    });
  }
  return writer.overflows();
}

template <typename Wire, typename T>
void cast_decode_range(const CastDecode& arguments) {
  const DecodeOutput& to = arguments.to;
  const bool adds = to.mode == DecodeMode::kAdd;
  const VF32 factor = hn::Set(F32(), to.factor);
  const auto add = [&](VF32 value, VF32 sum) HWY_ATTR { return fused(value, factor, sum); };
  const auto assign = [&](VF32 value, VF32) HWY_ATTR { return hn::Mul(value, factor); };
  Input<T, kTile> old_values(to.output, arguments.count);
  Output<T, kTile> output(to.output, adds ? Store::kCached : to.store);
  alignas(kCacheLine) float sums[kTile] = {};
  for (std::size_t first = 0; first < arguments.count; first += kTile) {
    const std::size_t count = std::min(kTile, arguments.count - first);
    if (adds)
      for (std::size_t i = 0; i < kTile; i += kLanes)
        hn::Store(load_values(old_values.tile(first) + i), F32(), sums + i);
    bool assigns = !adds;
    for (const void* payload : arguments.payloads) {
      if (assigns)
        add_tile<Wire>(payload, first, count, sums, assign);
      else
        add_tile<Wire>(payload, first, count, sums, add);
      assigns = false;
    }
    auto* values = reinterpret_cast<CastStored<Wire, T>*>(output.tile(count));
    for (std::size_t i = 0; i < kTile; i += kLanes)
      store_values(hn::Load(F32(), sums + i), values + i);
    output.commit(count);
  }
}

/// Copies values without arithmetic.
template <typename T>
void copy_range(const EncodeInput& sent, const CastOutput& output) {
  if (output.store == Store::kCached && sent.count > 0) {
    std::memmove(output.values, sent.gradient, sent.count * sizeof(T));
    return;
  }
  Input<T, kTile> gradients(sent.gradient, sent.count);
  Output<T, kTile, StreamSum> values(output.values, output.store, output.words);
  for (std::size_t first = 0; first < sent.count; first += kTile) {
    const std::size_t count = std::min(kTile, sent.count - first);
    std::copy_n(gradients.tile(first), kTile, values.tile(count));
    values.commit(count);
  }
}

template <class Format>
std::size_t encode(const CastEncode& arguments) {
  const DefaultFloatMode mode;
  return visit_sent(arguments.sent, [&]<typename G, typename E>(G, E) -> std::size_t {
    using Wire = typename Format::template Wire<G>;
    if constexpr (std::is_same_v<E, NoValues>) {
      if (arguments.wire_form == WireForm::kRaw && !std::is_same_v<Wire, Raw<Format, G>>)
        return cast_encode_range<Raw<Format, G>, G, E>(arguments);
      if (Format::kLossless && arguments.factor == 1)
        return copy_range<G>(arguments.sent, arguments.output), 0;
    }
    constexpr bool kUsesNoise = kCanRound<Format, G, !std::is_same_v<E, NoValues>>;
    return visit_cast_noise<kUsesNoise>(arguments.noise,
                                        [&]<class Random>(std::type_identity<Random>) {
                                          return cast_encode_range<Wire, G, E, Random>(arguments);
                                        });
  });
}

template <class Format>
void decode(const CastDecode& arguments) {
  const DefaultFloatMode mode;
  visit_gradient_dtype(arguments.to.dtype, [&]<typename T>(T) {
    using Wire = typename Format::template Wire<T>;
    if (arguments.wire_form == WireForm::kRaw && !std::is_same_v<Wire, Raw<Format, T>>)
      return cast_decode_range<Raw<Format, T>, T>(arguments);
    cast_decode_range<Wire, T>(arguments);
  });
}

template <class Format>
std::size_t reduce(const CastReduce& arguments) {
  const DefaultFloatMode mode;
  return visit_gradient_dtype(arguments.dtype, [&]<typename G>(G) {
    return visit_residual(arguments.feedback, [&]<typename E>(E) {
      return visit_cast_noise<Format::kHasRounding>(
          arguments.noise, [&]<class Random>(std::type_identity<Random>) {
            return cast_reduce_range<typename Format::template Wire<G>, E, Random>(arguments);
          });
    });
  });
}

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // TERSOR_KERNELS_CAST_LOOPS_INL_H_
