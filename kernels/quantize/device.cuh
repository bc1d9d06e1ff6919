// How int8 and int4 are launched on a device: types and lists of a call become kernels. One launch
// a call for up to 500 segments; with checksums one more that reads the payload again.
#pragma once

#include "kernels/device/device_call.cuh"
#include "kernels/quantize/body.cuh"

#include <algorithm>

namespace tersor::kernels {

/// Which random bytes a call needs.
template <typename Visitor>
void visit_noise(Rounding rounding, std::span<const Segment> segments, Visitor&& visitor) {
  if (rounding == Rounding::kNearest) return visitor(Constant<NoiseKind::kNone>{});
  const bool in_units = std::ranges::all_of(
      segments, [](const Segment& segment) { return segment.first_index % kNoiseUnit == 0; });
  if (in_units) return visitor(Constant<NoiseKind::kUnits>{});
  return visitor(Constant<NoiseKind::kAny>{});
}

template <class Format>
SegmentSizes quantize_sizes(const Segment& segment) {
  return {typename Format::Layout{segment.count}.bytes(), ceil_div(segment.count, kUnitValues)};
}

/// The launches of a call that writes a frame. Nobody reads the step where rounding is nearest, so
/// that the last kernel may advance it; else a launch behind it does.
template <class Format, NoiseKind kKind, class Kernel, class Call, class EntryOf>
void launch_quantize(Queue& queue, Kernel& kernel, const Call& call, const DeviceFrame& frame,
                     const EntryOf& entry_of) {
  constexpr bool kAdvances = kKind == NoiseKind::kNone;
  kernel.payload = frame.frame + sizeof(FrameHeader);
  kernel.words = words_of_call(call);
  kernel.key = call.random.key;
  prepare_next_words(queue, call);
  for_each_table(
      kernel.table, call.segments, quantize_sizes<Format>, entry_of, [&](LaunchPlace place) {
        kernel.seal = place.is_first ? seal_of(frame) : FrameSeal{};
        kernel.next = kAdvances && place.is_last ? next_words_of_call(call) : NextWords{};
        queue.launch(kernel,
                     queue.blocks_for<Kernel>(kernel.table.units, Kernel::kThreads / kWarpThreads));
      });
  add_checksum(queue, frame);
  if (!kAdvances && call.words_out != nullptr)
    queue.launch(AdvanceWordsKernel{next_words_of_call(call)}, 1);
}

/// The list length that a call's kernel is made for: noise of any element is rare and slow anyway.
template <NoiseKind kKind, typename Visitor>
void visit_quantize_lengths(std::size_t segments, std::size_t frames, Visitor&& visitor) {
  if constexpr (kKind == NoiseKind::kAny)
    visitor(Constant<kFewSegments>{}, Constant<kMostFrames>{});
  else
    visit_list_lengths(segments, frames, visitor);
}

template <class Format>
void quantize_device_encode(const EncodeCall& call, Rounding rounding, const DeviceFrame& frame) {
  Queue queue(call.execution.stream);
  const Dtype dtype = call.gradients.empty() ? Dtype::kF32 : call.gradients.front().dtype();
  visit_value_type(dtype, [&]<typename G>(G) {
    visit_residual_type(call.states, [&]<typename E>(E) {
      visit_noise(rounding, call.segments, [&]<NoiseKind kKind>(Constant<kKind>) {
        visit_quantize_lengths<kKind>(call.segments.size(), 0, [&](auto segments, auto) {
          QuantizeEncodeKernel<Format, G, E, kKind, segments()> kernel;
          launch_quantize<Format, kKind>(
              queue, kernel, call, frame,
              [&](std::size_t i, std::uint64_t offset) { return encode_entry(call, i, offset); });
        });
      });
    });
  });
}

template <class Format>
void quantize_device_reduce(const ReduceCall& call, Rounding rounding, const DeviceFrame& frame,
                            const FrameHeader& expected) {
  Queue queue(call.execution.stream);
  visit_residual_type(call.states, [&]<typename E>(E) {
    visit_noise(rounding, call.segments, [&]<NoiseKind kKind>(Constant<kKind>) {
      visit_quantize_lengths<kKind>(
          call.segments.size(), call.frames.size(), [&](auto segments, auto frames) {
            QuantizeReduceKernel<Format, E, kKind, segments(), frames()> kernel;
            kernel.list = list_frames<frames()>(queue, call.frames, expected, call.execution);
            launch_quantize<Format, kKind>(
                queue, kernel, call, frame,
                [&](std::size_t i, std::uint64_t offset) { return reduce_entry(call, i, offset); });
          });
    });
  });
}

template <class Format>
void quantize_device_decode(const DecodeCall& call, const FrameHeader& expected) {
  Queue queue(call.execution.stream);
  const Dtype dtype = call.outputs.empty() ? Dtype::kF32 : call.outputs.front().dtype();
  const auto launch = [&](auto& kernel) {
    using Kernel = std::remove_reference_t<decltype(kernel)>;
    kernel.list =
        list_frames<decltype(kernel.list)::kFrames>(queue, call.frames, expected, call.execution);
    kernel.factor = call.factor;
    for_each_table(
        kernel.table, call.segments, quantize_sizes<Format>,
        [&](std::size_t i, std::uint64_t offset) { return decode_entry(call, i, offset); },
        [&](LaunchPlace) {
          queue.launch(kernel, queue.blocks_for<Kernel>(kernel.table.units,
                                                        Kernel::kThreads / kWarpThreads));
        });
  };
  visit_value_type(dtype, [&]<typename T>(T) {
    visit_list_lengths(call.segments.size(), call.frames.size(), [&](auto segments, auto frames) {
      if (call.mode == DecodeMode::kAssign) {
        QuantizeDecodeKernel<Format, T, DecodeMode::kAssign, segments(), frames()> kernel;
        launch(kernel);
      } else {
        QuantizeDecodeKernel<Format, T, DecodeMode::kAdd, segments(), frames()> kernel;
        launch(kernel);
      }
    });
  });
}

}  // namespace tersor::kernels
