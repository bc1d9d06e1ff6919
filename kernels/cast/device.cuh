// How none, bf16 and f16 are launched on a device: types and lists of a call become kernels. One
// launch a call for up to 500 segments; with checksums one more that reads the payload again.
#pragma once

#include "kernels/cast/body.cuh"
#include "kernels/device/device_call.cuh"

#include <tersor/codecs/none.h>

namespace tersor::kernels {

/// Sections of a frame, or bare values one segment behind the other.
inline auto cast_sizes(Dtype wire, Padding padding) {
  return [=](const Segment& segment) -> SegmentSizes {
    const ValuesLayout layout{segment.count, wire};
    return {padding == Padding::kSection ? layout.bytes() : layout.values_bytes(),
            ceil_div(segment.count, kUnitValues)};
  };
}

/// The launches of a call that writes wire values. Nobody reads the step, so the last one advances
/// it.
template <class Kernel, class Call, class EntryOf>
void launch_cast(Queue& queue, Kernel& kernel, const Call& call, Dtype wire, const FrameSeal& seal,
                 const EntryOf& entry_of) {
  prepare_next_words(queue, call);
  kernel.target.overflows =
      call.words_out == nullptr ? call.execution.overflows : &call.words_out->overflows;
  for_each_table(kernel.table, call.segments, cast_sizes(wire, kernel.target.padding), entry_of,
                 [&](LaunchPlace place) {
                   kernel.seal = place.is_first ? seal : FrameSeal{};
                   kernel.next = place.is_last ? next_words_of_call(call) : NextWords{};
                   queue.launch(kernel, queue.blocks_for<Kernel>(kernel.table.units,
                                                                 Kernel::kThreads / kWarpThreads));
                 });
}

/// Where an encode writes: into a frame that it seals, or bare values times a factor.
struct CastDestination {
  std::byte* values;
  Padding padding;
  FrameSeal seal;
  float factor;
};
inline CastDestination framed(const DeviceFrame& frame) {
  return {frame.frame + sizeof(FrameHeader), Padding::kSection, seal_of(frame), 1};
}
inline CastDestination bare(ValueSpan values, float factor) {
  return {values.pointer(), Padding::kNone, {}, factor};
}

inline Dtype gradient_dtype(const EncodeCall& call) {
  return call.gradients.empty() ? Dtype::kF32 : call.gradients.front().dtype();
}
inline Dtype output_dtype(const DecodeCall& call) {
  return call.outputs.empty() ? Dtype::kF32 : call.outputs.front().dtype();
}

/// `Format` says of a codec which wire type a gradient of type G has (Format::Wire<G>), and whether
/// its bits travel as they are where nothing is computed (Format::kCopies).
template <class Format>
void cast_device_encode(const EncodeCall& call, const CastDestination& to) {
  Queue queue(call.execution.stream);
  visit_value_type(gradient_dtype(call), [&]<typename G>(G) {
    using Wire = typename Format::template Wire<G>;
    const auto launch = [&](auto& kernel) {
      kernel.target = {to.values, to.padding, nullptr};
      launch_cast(
          queue, kernel, call, DtypeOf<Wire>::value, to.seal,
          [&](std::size_t i, std::uint64_t offset) { return encode_entry(call, i, offset); });
    };
    visit_list_lengths(call.segments.size(), 0, [&](auto segments, auto) {
      if constexpr (Format::kCopies)
        if (call.states.empty() && to.factor == 1) {
          CopyKernel<G, segments()> kernel;
          return launch(kernel);
        }
      visit_residual_type(call.states, [&]<typename E>(E) {
        CastEncodeKernel<Wire, G, E, segments()> kernel;
        kernel.words = words_of_call(call);
        kernel.factor = to.factor;
        launch(kernel);
      });
    });
  });
}

template <class Format>
void cast_device_encode_frame(const EncodeCall& call, const DeviceFrame& frame) {
  cast_device_encode<Format>(call, framed(frame));
  Queue queue(call.execution.stream);
  add_checksum(queue, frame);
}

/// Lists frames or bare values; `fill(queue, list)` does it for a list of any length.
template <class Format, class Fill>
void cast_device_decode_list(const DecodeCall& call, Padding padding, const Fill& fill) {
  Queue queue(call.execution.stream);
  visit_value_type(output_dtype(call), [&]<typename T>(T) {
    using Wire = typename Format::template Wire<T>;
    const auto launch = [&](auto& kernel) {
      using Kernel = std::remove_reference_t<decltype(kernel)>;
      fill(queue, kernel.list);
      kernel.factor = call.factor;
      for_each_table(
          kernel.table, call.segments, cast_sizes(DtypeOf<Wire>::value, padding),
          [&](std::size_t i, std::uint64_t offset) { return decode_entry(call, i, offset); },
          [&](LaunchPlace) {
            queue.launch(kernel, queue.blocks_for<Kernel>(kernel.table.units,
                                                          Kernel::kThreads / kWarpThreads));
          });
    };
    visit_list_lengths(call.segments.size(), call.frames.size(), [&](auto segments, auto frames) {
      if (call.mode == DecodeMode::kAssign) {
        CastDecodeKernel<Wire, T, DecodeMode::kAssign, segments(), frames()> kernel;
        launch(kernel);
      } else {
        CastDecodeKernel<Wire, T, DecodeMode::kAdd, segments(), frames()> kernel;
        launch(kernel);
      }
    });
  });
}

template <class Format>
void cast_device_decode(const DecodeCall& call, const FrameHeader& expected) {
  cast_device_decode_list<Format>(
      call, Padding::kSection, [&]<unsigned kMost>(Queue& queue, FrameList<kMost>& list) {
        list = list_frames<kMost>(queue, call.frames, expected, call.execution);
      });
}

/// Of no codec's own: bare values that a transport added.
template <class Format>
void cast_device_decode_native(const DecodeCall& call, ConstValueSpan values) {
  cast_device_decode_list<Format>(call, Padding::kNone,
                                  [&]<unsigned kMost>(Queue&, FrameList<kMost>& list) {
                                    list = {};
                                    list.header_bytes = 0;
                                    list.frames = 1;
                                    list.frame[0] = values.pointer();
                                  });
}

template <class Format>
void cast_device_reduce(const ReduceCall& call, const DeviceFrame& frame,
                        const FrameHeader& expected) {
  Queue queue(call.execution.stream);
  const auto entry_of = [&](std::size_t i, std::uint64_t offset) {
    return reduce_entry(call, i, offset);
  };
  visit_value_type(call.dtype, [&]<typename G>(G) {
    using Wire = typename Format::template Wire<G>;
    visit_residual_type(call.states, [&]<typename E>(E) {
      visit_list_lengths(call.segments.size(), call.frames.size(), [&](auto segments, auto frames) {
        CastReduceKernel<Wire, E, segments(), frames()> kernel;
        kernel.list = list_frames<frames()>(queue, call.frames, expected, call.execution);
        const CastDestination to = framed(frame);
        kernel.target = {to.values, to.padding, nullptr};
        kernel.words = words_of_call(call);
        launch_cast(queue, kernel, call, DtypeOf<Wire>::value, to.seal, entry_of);
      });
    });
  });
  add_checksum(queue, frame);
}

}  // namespace tersor::kernels
