// How hadamard is launched on a device: types and lists of a call become kernels. One launch a call
// for up to 500 segments; with words to write one more that advances the step, which an encode
// reads. With checksums their words are cleared before.

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

/// The launches of a call that writes a frame.
template <class Kernel, class Call, class EntryOf>
void launch_writer(Queue& queue, Kernel& kernel, const Call& call, const DeviceFrame& frame,
                   const EntryOf& entry_of) {
  kernel.payload = frame.frame + sizeof(FrameHeader);
  kernel.overflows =
      call.words_out == nullptr ? call.execution.overflows : &call.words_out->overflows;
  kernel.words = words_of_call(call);
  prepare_next_words(queue, call);
  prepare_seal(queue, frame);
  for_each_table(kernel.table, call.segments, sizes_of(kernel.bits), entry_of,
                 [&](LaunchPlace place) {
                   kernel.seal = seal_of(frame, place);
                   launch_units(queue, kernel);
                 });
  if (call.words_out != nullptr) queue.launch(AdvanceWordsKernel{next_words_of_call(call)}, 1);
}

template <unsigned kMost, class Call>
FrameList<kMost> list_carriers(Queue& queue, const Call& call, const FrameHeader& expected,
                               Launches launches) {
  FrameList<kMost> list =
      list_frames<kMost>(queue, call.frames, expected, call.execution, launches);
  list.carries_step = true;
  return list;
}

HadamardEntry entry_of(const DecodeCall& call, std::size_t i, std::uint64_t offset) {
  const Segment& segment = call.segments[i];
  return {.output = call.outputs[i].pointer(),
          .count = segment.count,
          .first_index = segment.first_index,
          .offset = offset,
          .parameter = segment.parameter,
          .first_unit = 0};
}

}  // namespace

void hadamard_device_encode(const EncodeCall& call, unsigned bits, const DeviceFrame& frame) {
  Queue queue(call.execution.stream);
  const Dtype dtype = call.gradients.empty() ? Dtype::kF32 : call.gradients.front().dtype();
  visit_value_type(dtype, [&]<typename G>(G) {
    visit_residual_type(call.states, [&]<typename E>(E) {
      visit_lengths(call.segments.size(), 0, [&](auto segments, auto) {
        HadamardEncodeKernel<G, E, segments()> kernel;
        kernel.bits = bits;
        launch_writer(queue, kernel, call, frame, [&](std::size_t i, std::uint64_t offset) {
          return encode_entry(call, i, offset);
        });
      });
    });
  });
}

void hadamard_device_decode(const DecodeCall& call, unsigned bits, const FrameHeader& expected) {
  Queue queue(call.execution.stream);
  const Dtype dtype = call.outputs.empty() ? Dtype::kF32 : call.outputs.front().dtype();
  visit_value_type(dtype, [&]<typename T>(T) {
    visit_lengths(call.segments.size(), call.frames.size(), [&](auto segments, auto frames) {
      HadamardDecodeKernel<T, segments(), frames()> kernel;
      kernel.list =
          list_carriers<frames()>(queue, call, expected, launches_of(kernel.table, call.segments));
      kernel.factor = call.factor;
      kernel.bits = bits;
      kernel.mode = call.mode;
      for_each_table(
          kernel.table, call.segments, sizes_of(bits),
          [&](std::size_t i, std::uint64_t offset) { return entry_of(call, i, offset); },
          [&](LaunchPlace) { launch_units(queue, kernel); });
    });
  });
}

void hadamard_device_reduce(const ReduceCall& call, unsigned bits, const DeviceFrame& frame) {
  Queue queue(call.execution.stream);
  visit_residual_type(call.states, [&]<typename E>(E) {
    visit_lengths(call.segments.size(), call.frames.size(), [&](auto segments, auto frames) {
      HadamardReduceKernel<E, segments(), frames()> kernel;
      kernel.list = list_carriers<frames()>(queue, call, frame.header,
                                            launches_of(kernel.table, call.segments));
      kernel.factor = call.factor;
      kernel.bits = bits;
      launch_writer(queue, kernel, call, frame, [&](std::size_t i, std::uint64_t offset) {
        return reduce_entry(call, i, offset);
      });
    });
  });
}

}  // namespace tersor::kernels
