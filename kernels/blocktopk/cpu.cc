// blocktopk on the CPU. The selection reads a block of 4,096 values from the first-level cache.
// Memory traffic in bytes per value, for f32, 1 % and signs:
//   Encode: 4 read and 0.015 written. Error feedback adds 4 read and 4 written.
//   Decode: 0.015 read per payload and 4 written.
//   Reduce: 0.015 read per payload and 0.015 written. The owner's residual adds 4 read and
//     4 written.

#include "kernels/blocktopk/cpu.h"

#include "kernels/blocktopk/formulas.h"
#include "kernels/blocktopk/lists.h"
#include "kernels/host/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/blocktopk/cpu.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include "kernels/blocktopk/blocks-inl.h"
#include "kernels/scalar/float_mode.h"

HWY_BEFORE_NAMESPACE();
namespace tersor::kernels::HWY_NAMESPACE {

template <typename G, typename E>
std::size_t encode_range(const BlocktopkEncode& arguments) {
  const EncodeInput& sent = arguments.sent;
  const Factors factors(sent.feedback);
  Input<G, kValues> gradients(sent.gradient, sent.count);
  BlocktopkWriter<E> writer(arguments.output, arguments.block, sent.feedback, sent.count);
  for (std::size_t first = 0; first < sent.count; first += kValues) {
    const G* gradient = gradients.tile(first);
    const Pointer<const E> residual = writer.old_residual(first);
    writer.write(
        first,
        [&](std::size_t i) HWY_ATTR { return with_feedback(gradient + i, residual + i, factors); },
        [&](std::size_t at) HWY_ATTR { gradients.prefetch(at, kPrefetchValues); });
  }
  return writer.overflows();
}

template <typename E>
std::size_t reduce_range(const BlocktopkReduce& arguments) {
  const BlocktopkInput& input = arguments.input;
  const Factors factors(arguments.feedback);
  BlocktopkWriter<E> writer(arguments.output, input.block, arguments.feedback, input.count);
  alignas(kCacheLine) float sum[kValues];
  for (std::size_t first = 0; first < input.count; first += kValues) {
    const Pointer<const E> residual = writer.old_residual(first);
    std::fill_n(sum, kValues, 0.0f);
    add_payloads(input, first / kValues, arguments.factor, sum);
    writer.write(
        first,
        [&](std::size_t i)
            HWY_ATTR { return add_residual(load_values(sum + i), residual + i, factors); },
        [](std::size_t) {});
  }
  return writer.overflows();
}

template <typename T>
void decode_range(const BlocktopkDecode& arguments) {
  const BlocktopkInput& input = arguments.input;
  const DecodeOutput& to = arguments.to;
  const bool adds = to.mode == DecodeMode::kAdd;
  Input<T, kValues> old_values(to.output, input.count);
  Output<T, kValues> output(to.output, adds ? Store::kCached : to.store);
  alignas(kCacheLine) float sum[kValues];
  for (std::size_t first = 0; first < input.count; first += kValues) {
    const std::size_t count = std::min(kValues, input.count - first);
    if (adds)
      convert(old_values.tile(first), sum);
    else
      std::fill_n(sum, kValues, 0.0f);
    add_payloads(input, first / kValues, to.factor, sum);
    convert(sum, output.tile(count));
    output.commit(count);
  }
}

std::size_t blocktopk_encode_on(const BlocktopkEncode& arguments) {
  const DefaultFloatMode mode;
  return visit_sent(arguments.sent,
                    [&]<typename G, typename E>(G, E) { return encode_range<G, E>(arguments); });
}

void blocktopk_decode_on(const BlocktopkDecode& arguments) {
  const DefaultFloatMode mode;
  visit_gradient_dtype(arguments.to.dtype,
                       [&](auto value) { decode_range<decltype(value)>(arguments); });
}

std::size_t blocktopk_reduce_on(const BlocktopkReduce& arguments) {
  const DefaultFloatMode mode;
  return visit_residual(arguments.feedback,
                        [&]<typename E>(E) { return reduce_range<E>(arguments); });
}

const char* blocktopk_validate_on(const BlocktopkView& payload, const BlocktopkBlock& block,
                                  std::size_t count) {
  for (std::size_t first = 0; first < count; first += kValues) {
    const BlocktopkView lists = payload.from(first / kValues, block);
    const char* wrong = index_error(lists.high, lists.low, block, std::min(kValues, count - first));
    if (wrong != nullptr) return wrong;
  }
  return nullptr;
}

}  // namespace tersor::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include "kernels/host/dispatch.h"

namespace tersor::kernels {

TERSOR_DISPATCHED(std::size_t, blocktopk_encode, (const BlocktopkEncode& arguments), (arguments))
TERSOR_DISPATCHED(void, blocktopk_decode, (const BlocktopkDecode& arguments), (arguments))
TERSOR_DISPATCHED(std::size_t, blocktopk_reduce, (const BlocktopkReduce& arguments), (arguments))
TERSOR_DISPATCHED(const char*, blocktopk_validate,
                  (const BlocktopkView& payload, const BlocktopkBlock& block, std::size_t count),
                  (payload, block, count))

}  // namespace tersor::kernels
#endif
