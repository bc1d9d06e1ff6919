// Launches the kernels of cast formats on a device: selects kernels by the types and list lengths
// of a call. If frames have checksums, a memset first zeroes the words used for sums.

#include "kernels/cast/body.cuh"
#include "kernels/cast/formats.h"
#include "kernels/cast/kernels.h"
#include "kernels/device/device_call.cuh"
#include "kernels/device/noise.cuh"

namespace tersor::kernels {
namespace {

/// Returns the sizes of a frame's sections, or of raw values without gaps between segments.
auto cast_sizes(Dtype wire, Padding padding) {
  return [=](const Segment& segment) -> SegmentSizes {
    const ValuesLayout layout{segment.count, wire};
    return {padding == Padding::kSection ? layout.bytes() : layout.values_bytes(),
            ceil_div(segment.count, kUnitValues)};
  };
}

/// The destination of an encode: a frame that the encode seals, or raw values times a factor.
struct CastDestination {
  std::byte* values;
  Padding padding;
  const DeviceFrame* frame;  // null: raw values
  float factor;
};
CastDestination framed(const DeviceFrame& frame) {
  return {frame.frame + sizeof(FrameHeader), Padding::kSection, &frame, 1};
}

template <typename Wire, NoiseKind kKind, class Kernel, class Call>
void launch_cast(Queue& queue, Kernel& kernel, const CastDestination& to, const Call& call) {
  kernel.coder.target = {to.values, to.padding, overflows_of(call)};
  if constexpr (kKind != NoiseKind::kNone) kernel.coder.key = wide_key(call.random.key);
  launch_writer<kAdvanceFor<kKind>>(queue, kernel, call, to.frame,
                                    cast_sizes(DtypeOf<Wire>::value, to.padding));
}

template <class Format, typename Wire, typename G, typename E, NoiseKind kKind>
void encode_as(const CastDestination& to, const EncodeCall& call) {
  Queue queue(call.execution.stream);
  if constexpr (Format::kLossless && std::is_same_v<Wire, G> && std::is_same_v<E, NoResidual>)
    if (to.factor == 1)
      return visit_lengths(call.segments.size(), 0, [&](auto segments, auto) {
        using Bits = std::conditional_t<sizeof(G) == 4, std::uint32_t, std::uint16_t>;
        CopyKernel<Bits, segments()> kernel;
        launch_cast<Wire, kKind>(queue, kernel, to, call);
      });
  visit_lengths<kEncodeLengths<E, kKind>>(call.segments.size(), 0, [&](auto segments, auto) {
    CastEncodeKernel<Wire, G, E, kKind, segments()> kernel;
    kernel.coder.factor = to.factor;
    launch_cast<Wire, kKind>(queue, kernel, to, call);
  });
}

/// Decodes a list of frames or raw values. fill(queue, list, launches) sets up the list.
template <typename Wire, typename T, class Fill>
void decode_list(const DecodeCall& call, Padding padding, const Fill& fill) {
  Queue queue(call.execution.stream);
  visit_decode(call, [&](auto mode, auto segments, auto frames) {
    CastDecodeKernel<Wire, T, mode(), segments(), frames()> kernel;
    fill(queue, kernel.list, launches_of(kernel.table, call.segments));
    launch_reader(queue, kernel, call, cast_sizes(DtypeOf<Wire>::value, padding));
  });
}

}  // namespace

template <class Format>
void cast_device_encode(const EncodeCall& call, Rounding rounding, const DeviceFrame& frame) {
  visit_sent(call, [&]<typename G, typename E>(G, E) {
    constexpr bool kUsesNoise = kCanRound<Format, G, !std::is_same_v<E, NoResidual>>;
    visit_noise<kUsesNoise>(rounding, call, [&]<NoiseKind kKind>(Constant<kKind>) {
      encode_as<Format, typename Format::template Wire<G>, G, E, kKind>(framed(frame), call);
    });
  });
}

template <class Format>
void cast_device_encode_native(const EncodeCall& call, float factor, ValueSpan values) {
  const CastDestination raw{values.pointer(), Padding::kNone, nullptr, factor};
  visit_gradient_dtype(dtype_of(call.gradients), [&]<typename G>(G) {
    encode_as<Format, Raw<Format, G>, G, NoResidual, NoiseKind::kNone>(raw, call);
  });
}

template <class Format>
void cast_device_decode(const DecodeCall& call, const FrameHeader& expected) {
  visit_gradient_dtype(dtype_of(call.outputs), [&]<typename T>(T) {
    decode_list<typename Format::template Wire<T>, T>(
        call, Padding::kSection,
        [&]<unsigned kCapacity>(Queue& queue, FrameList<kCapacity>& list, Launches launches) {
          list = list_frames<kCapacity>(queue, call.frames, expected, call.execution, launches);
        });
  });
}

template <class Format>
void cast_device_decode_native(const DecodeCall& call, ConstValueSpan values) {
  visit_gradient_dtype(dtype_of(call.outputs), [&]<typename T>(T) {
    decode_list<Raw<Format, T>, T>(
        call, Padding::kNone,
        [&]<unsigned kCapacity>(Queue&, FrameList<kCapacity>& list, Launches) {
          list = {};
          list.header_bytes = 0;
          list.frames = 1;
          list.frame[0] = values.pointer();
        });
  });
}

template <class Format>
void cast_device_reduce(const ReduceCall& call, Rounding rounding, const DeviceFrame& frame) {
  Queue queue(call.execution.stream);
  visit_gradient_dtype(call.dtype, [&]<typename G>(G) {
    using Wire = typename Format::template Wire<G>;
    visit_residual_type(call.states, [&]<typename E>(E) {
      visit_noise<Format::kHasRounding>(rounding, call, [&]<NoiseKind kKind>(Constant<kKind>) {
        visit_reduce_lengths<kKind>(
            call.segments.size(), call.frames.size(), [&](auto segments, auto frames) {
              CastReduceKernel<Wire, E, kKind, segments(), frames()> kernel;
              kernel.list = list_frames<frames()>(queue, call.frames, frame.header, call.execution,
                                                  launches_of(kernel.table, call.segments));
              kernel.factor = call.factor;
              launch_cast<Wire, kKind>(queue, kernel, framed(frame), call);
            });
      });
    });
  });
}

#define TERSOR_INSTANTIATE(Format)                                                           \
  template void cast_device_encode<Format>(const EncodeCall&, Rounding, const DeviceFrame&); \
  template void cast_device_encode_native<Format>(const EncodeCall&, float, ValueSpan);      \
  template void cast_device_decode<Format>(const DecodeCall&, const FrameHeader&);           \
  template void cast_device_decode_native<Format>(const DecodeCall&, ConstValueSpan);        \
  template void cast_device_reduce<Format>(const ReduceCall&, Rounding, const DeviceFrame&);
TERSOR_CAST_FORMATS(TERSOR_INSTANTIATE)

}  // namespace tersor::kernels
