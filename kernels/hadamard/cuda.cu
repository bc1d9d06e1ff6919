// Launches hadamard's kernels on a device: selects kernels by the types and list lengths of a call.
// A call with up to 500 segments is one launch. If the call writes state words, one more launch
// advances the step, because an encode reads the step. If frames have checksums, a memset first
// zeroes the header words used for sums.

#include "kernels/device/device_call.cuh"
#include "kernels/hadamard/body.cuh"
#include "kernels/hadamard/device.h"

namespace tersor::kernels {
namespace {

auto sizes_of(unsigned bits) {
  return [=](const Segment& segment) -> SegmentSizes {
    return {HadamardLayout{segment.count, bits}.bytes(),
            ceil_div(segment.count, kHadamardUnitValues)};
  };
}

/// Launches a kernel, and a separate launch to advance the step, because the kernel reads the step.
template <class Kernel, class Call>
void launch_hadamard(Queue& queue, Kernel& kernel, const Call& call, unsigned bits,
                     const DeviceFrame& frame) {
  kernel.payload = frame.frame + sizeof(FrameHeader);
  kernel.overflows = overflows_of(call);
  kernel.bits = bits;
  launch_writer<Advance::kSeparateLaunch>(queue, kernel, call, &frame, sizes_of(bits));
}

}  // namespace

void hadamard_device_encode(const EncodeCall& call, unsigned bits, const DeviceFrame& frame) {
  Queue queue(call.execution.stream);
  visit_sent(call, [&]<typename G, typename E>(G, E) {
    visit_lengths(call.segments.size(), 0, [&](auto segments, auto) {
      HadamardEncodeKernel<G, E, segments()> kernel;
      launch_hadamard(queue, kernel, call, bits, frame);
    });
  });
}

void hadamard_device_decode(const DecodeCall& call, unsigned bits, const FrameHeader& expected) {
  Queue queue(call.execution.stream);
  visit_gradient_dtype(dtype_of(call.outputs), [&]<typename T>(T) {
    visit_lengths(call.segments.size(), call.frames.size(), [&](auto segments, auto frames) {
      HadamardDecodeKernel<T, segments(), frames()> kernel;
      kernel.list = list_frames<frames()>(queue, call.frames, expected, call.execution,
                                          launches_of(kernel.table, call.segments));
      kernel.list.has_step = true;
      kernel.factor = call.factor;
      kernel.bits = bits;
      kernel.mode = call.mode;
      for_each_table(
          kernel.table, call.segments, sizes_of(bits),
          [&](std::size_t i, std::uint64_t offset) {
            return HadamardDecodeEntry{entry_of(call, i, offset), call.segments[i].first_index};
          },
          [&](LaunchPosition) { launch_units(queue, kernel); });
    });
  });
}

void hadamard_device_reduce(const ReduceCall& call, unsigned bits, const DeviceFrame& frame) {
  Queue queue(call.execution.stream);
  visit_residual_type(call.states, [&]<typename E>(E) {
    visit_lengths(call.segments.size(), call.frames.size(), [&](auto segments, auto frames) {
      HadamardReduceKernel<E, segments(), frames()> kernel;
      kernel.list = list_frames<frames()>(queue, call.frames, frame.header, call.execution,
                                          launches_of(kernel.table, call.segments));
      kernel.list.has_step = true;
      kernel.factor = call.factor;
      launch_hadamard(queue, kernel, call, bits, frame);
    });
  });
}

}  // namespace tersor::kernels
