// Launches the kernels of quantising formats on a device: selects kernels by the types and list
// lengths of a call. If frames have checksums, a memset first zeroes the words used for sums.

#include "kernels/quantize/body.cuh"
#include "kernels/quantize/kernels.h"

#include TERSOR_QUANTIZE_FORMATS

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
  launch_writer<kAdvanceOf<kKind>>(queue, kernel, call, &frame, quantize_sizes<Format, Kernel>);
}

}  // namespace

template <class Format>
void quantize_device_encode(const EncodeCall& call, Rounding rounding, const DeviceFrame& frame) {
  Queue queue(call.execution.stream);
  visit_sent(call, [&]<typename G, typename E>(G, E) {
    visit_noise(rounding, call.segments, [&]<NoiseKind kKind>(Constant<kKind>) {
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
    visit_noise(rounding, call.segments, [&]<NoiseKind kKind>(Constant<kKind>) {
      visit_reduce_lengths<kKind>(
          call.segments.size(), call.frames.size(), [&](auto segments, auto frames) {
            QuantizeReduceKernel<Format, E, kKind, segments(), frames()> kernel;
            kernel.list = list_frames<frames()>(queue, call.frames, frame.header, call.execution,
                                                launches_of(kernel.table, call.segments));
            kernel.factor = call.factor;
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
      kernel.list = list_frames<frames()>(queue, call.frames, expected, call.execution,
                                          launches_of(kernel.table, call.segments));
      launch_reader(queue, kernel, call, quantize_sizes<Format, decltype(kernel)>);
    });
  });
}

#define TERSOR_QUANTIZE_FORMAT(Format)                                                           \
  template void quantize_device_encode<Format>(const EncodeCall&, Rounding, const DeviceFrame&); \
  template void quantize_device_decode<Format>(const DecodeCall&, const FrameHeader&);           \
  template void quantize_device_reduce<Format>(const ReduceCall&, Rounding, const DeviceFrame&);
#include TERSOR_QUANTIZE_FORMATS
#undef TERSOR_QUANTIZE_FORMAT

}  // namespace tersor::kernels
