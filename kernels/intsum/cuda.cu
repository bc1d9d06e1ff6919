// Launches intsum's kernels on a device. Each round needs a single launch for up to
// kShortListSegments segments.

#include "kernels/intsum/body.cuh"
#include "kernels/intsum/device.h"

namespace tersor::kernels {
namespace {

/// The sizes summed by for_each_table.
struct IntsumSizes {
  IntsumOffset bytes;
  std::size_t units;
};

auto sizes_of(AccumulatorBits accumulator_bits) {
  return [=](const Segment& segment) -> IntsumSizes {
    return {IntsumOffset::of(segment.count, accumulator_bits),
            ceil_div(segment.count, kUnitValues)};
  };
}

unsigned code_bytes(AccumulatorBits accumulator_bits) {
  return static_cast<unsigned>(dtype_bytes(intsum_dtype(accumulator_bits)));
}

/// Converts between the scales in the round state and the flags stored after all codes.
template <typename Flag>
void launch_flags(Queue& queue, const Execution& execution, std::span<const Segment> segments,
                  const IntsumOptions& options, std::byte* codes, bool encodes) {
  IntsumOffset end;
  for (const Segment& segment : segments)
    end += IntsumOffset::of(segment.count, options.accumulator_bits);
  const IntsumFlagKernel<Flag> kernel{{{}, end.maxima},
                                      reinterpret_cast<float*>(execution.round_state.data()),
                                      reinterpret_cast<Flag*>(codes) + end.codes,
                                      options.scale,
                                      encodes};
  queue.launch_tasks(kernel, kernel.count, kernel.kThreads);
}

template <class Call>
void launch_fixed_scales(Queue& queue, const Call& call, const IntsumOptions& options,
                         std::byte* codes, bool encodes) {
  const auto launch = options.accumulator_bits == AccumulatorBits::k8 ? launch_flags<std::uint8_t>
                                                                      : launch_flags<std::uint32_t>;
  launch(queue, call.execution, call.segments, options, codes, encodes);
}

void launch_maxima(Queue& queue, const EncodeCall& call, float factor, std::byte* maxima) {
  visit_sent(call, [&]<typename G, typename E>(G, E) {
    IntsumMaximaKernel<G, E> kernel;
    kernel.maxima = reinterpret_cast<std::uint32_t*>(maxima);
    kernel.words = words_of_call(call);
    kernel.factor = factor;
    for_each_table(
        kernel.table, call.segments, sizes_of(AccumulatorBits::k8),
        [&](std::size_t i, const IntsumOffset& offset) { return entry_of(call, i, offset); },
        [&](LaunchPosition) { launch_units(queue, kernel); });
  });
}

}  // namespace

void intsum_device_maxima(const EncodeCall& call, float factor, ValueSpan maxima) {
  Queue queue(call.execution.stream);
  launch_maxima(queue, call, factor, maxima.pointer());
}

void intsum_device_scales(const DecodeCall& call, float levels, ConstValueSpan maxima) {
  Queue queue(call.execution.stream);
  const IntsumScalesKernel kernel{{{}, maxima.count()},
                                  reinterpret_cast<const std::uint32_t*>(maxima.pointer()),
                                  reinterpret_cast<float*>(call.execution.round_state.data()),
                                  levels};
  queue.launch_tasks(kernel, kernel.count, kernel.kThreads);
}

void intsum_device_encode(const EncodeCall& call, const IntsumOptions& options, float factor,
                          ValueSpan codes) {
  Queue queue(call.execution.stream);
  if (options.scale > 0) {
    launch_maxima(queue, call, factor, call.execution.round_state.data());
    launch_fixed_scales(queue, call, options, codes.pointer(), true);
  }
  visit_sent(call, [&]<typename G, typename E>(G, E) {
    visit_noise(options.rounding, call, [&]<NoiseKind kKind>(Constant<kKind>) {
      IntsumEncodeKernel<G, E, kKind> kernel;
      kernel.codes = codes.pointer();
      kernel.scales = reinterpret_cast<const float*>(call.execution.round_state.data());
      kernel.key = call.random.key;
      kernel.factor = factor;
      kernel.levels = static_cast<float>(intsum_levels(options, call.contributions));
      kernel.accumulator_bits = options.accumulator_bits;
      kernel.code_bytes = code_bytes(options.accumulator_bits);
      launch_writer<kAdvanceFor<kKind>>(queue, kernel, call, nullptr,
                                        sizes_of(options.accumulator_bits));
    });
  });
}

void intsum_device_decode(const DecodeCall& call, const IntsumOptions& options,
                          ConstValueSpan codes) {
  Queue queue(call.execution.stream);
  const AccumulatorBits accumulator_bits = options.accumulator_bits;
  if (options.scale > 0)
    launch_fixed_scales(queue, call, options, const_cast<std::byte*>(codes.pointer()), false);
  visit_gradient_dtype(dtype_of(call.outputs), [&]<typename T>(T) {
    IntsumDecodeKernel<T> kernel;
    kernel.codes = codes.pointer();
    kernel.scales = reinterpret_cast<const float*>(call.execution.round_state.data());
    kernel.mode = call.mode;
    kernel.accumulator_bits = accumulator_bits;
    kernel.code_bytes = code_bytes(accumulator_bits);
    launch_reader(queue, kernel, call, sizes_of(accumulator_bits));
  });
}

}  // namespace tersor::kernels
