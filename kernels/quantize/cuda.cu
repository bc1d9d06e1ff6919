// Launches the kernels of quantising formats on a device: selects kernels by the types and list
// lengths of a call. If frames have checksums, a memset first zeroes the words used for sums.

#include "kernels/quantize/body.cuh"
#include "kernels/quantize/kernels.h"
#include "kernels/quantize/largest_body.cuh"

#include "kernels/quantize/formats.h"

namespace tersor::kernels {
namespace {

template <class Format, class Kernel>
SegmentSizes quantize_sizes(const Segment& segment) {
  return {typename Format::Layout{segment.count}.bytes(),
          ceil_div(segment.count, Kernel::Order::kValues)};
}

template <class Format, NoiseKind kKind, class Kernel, class Call>
void launch_quantize(Queue& queue, Kernel& kernel, const Call& call, const DeviceFrame& frame) {
  kernel.coder.payload = frame.frame + sizeof(FrameHeader);
  kernel.coder.key = call.random.key;
  launch_writer<kAdvanceFor<kKind>>(queue, kernel, call, &frame, quantize_sizes<Format, Kernel>);
}

/// Finds the largest magnitudes before a frame is written.
template <class Kernel, class Layout, class Call>
void launch_largest(Queue& queue, Kernel& kernel, const Call& call, const DeviceFrame& frame) {
  kernel.payload = frame.frame + sizeof(FrameHeader);
  kernel.words = words_of_call(call);
  const auto sizes = [](const Segment& segment) {
    return SegmentSizes{Layout{segment.count}.bytes(), ceil_div(segment.count, kUnitValues)};
  };
  const auto entry = [&](std::size_t i, std::uint64_t offset) { return entry_of(call, i, offset); };
  for_each_table(kernel.table, call.segments, sizes, entry, [&](LaunchPosition) {
    kernel.clears = true;
    queue.launch(kernel, 1);
    kernel.clears = false;
    launch_units(queue, kernel);
  });
}

}  // namespace

template <class Format>
void quantize_device_encode(const EncodeCall& call, Rounding rounding, const DeviceFrame& frame) {
  Queue queue(call.execution.stream);
  visit_sent(call, [&]<typename G, typename E>(G, E) {
    if constexpr (kHasSegmentScale<Format>) {
      LargestSentKernel<G, E, kShortListSegments> largest;
      launch_largest<decltype(largest), typename Format::Layout>(queue, largest, call, frame);
    }
    visit_noise<Format::kStochastic>(rounding, call, [&]<NoiseKind kKind>(Constant<kKind>) {
      visit_lengths<kEncodeLengths<E, kKind>>(call.segments.size(), 0, [&](auto segments, auto) {
        QuantizeEncodeKernel<Format, G, E, kKind, segments()> kernel;
        launch_quantize<Format, kKind>(queue, kernel, call, frame);
      });
    });
  });
}

template <class Format>
void quantize_device_reduce(const ReduceCall& call, Rounding rounding, const DeviceFrame& frame) {
  Queue queue(call.execution.stream);
  visit_residual_type(call.states, [&]<typename E>(E) {
    visit_noise<Format::kStochastic>(rounding, call, [&]<NoiseKind kKind>(Constant<kKind>) {
      visit_reduce_lengths<kKind>(
          call.segments.size(), call.frames.size(), [&](auto segments, auto frames) {
            QuantizeReduceKernel<Format, E, kKind, segments(), frames()> kernel;
            kernel.list = list_frames<frames()>(queue, call.frames, frame.header, call.execution,
                                                launches_of(kernel.table, call.segments));
            kernel.factor = call.factor;
            if constexpr (kHasSegmentScale<Format>) {
              LargestSumKernel<Format, E, segments(), frames()> largest;
              largest.list = kernel.list;
              largest.factor = call.factor;
              launch_largest<decltype(largest), typename Format::Layout>(queue, largest, call,
                                                                         frame);
            }
            launch_quantize<Format, kKind>(queue, kernel, call, frame);
          });
    });
  });
}

template <class Format>
void quantize_device_decode(const DecodeCall& call, const FrameHeader& expected) {
  Queue queue(call.execution.stream);
  visit_gradient_dtype(dtype_of(call.outputs), [&]<typename T>(T) {
    visit_decode(call, [&](auto mode, auto segments, auto frames) {
      QuantizeDecodeKernel<Format, T, mode(), segments(), frames()> kernel;
      Launches launches = launches_of(kernel.table, call.segments);
      if constexpr (kHasSegmentScale<Format>)
        if (call.window_first) {  // is checked first, because NaNs would fill the whole segment
          kernel.reader.first = *call.window_first;
          kernel.reader.end = *call.window_first + call.outputs[0].count();
          launches = Launches::kSeveral;
        }
      kernel.list = list_frames<frames()>(queue, call.frames, expected, call.execution, launches);
      launch_reader(queue, kernel, call, quantize_sizes<Format, decltype(kernel)>);
    });
  });
}

#define TERSOR_QUANTIZE_FORMAT(Format)                                                           \
  template void quantize_device_encode<Format>(const EncodeCall&, Rounding, const DeviceFrame&); \
  template void quantize_device_decode<Format>(const DecodeCall&, const FrameHeader&);           \
  template void quantize_device_reduce<Format>(const ReduceCall&, Rounding, const DeviceFrame&);
#include "kernels/quantize/formats.h"
#undef TERSOR_QUANTIZE_FORMAT

}  // namespace tersor::kernels
