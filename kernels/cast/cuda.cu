// How cast formats are launched on a device: types and lists of a call become kernels. With
// checksums their words are cleared before.

#include "kernels/cast/body.cuh"
#include "kernels/cast/formats.h"
#include "kernels/cast/kernels.h"
#include "kernels/device/device_call.cuh"

namespace tersor::kernels {
namespace {

/// Sections of a frame, or bare values one segment behind the other.
auto cast_sizes(Dtype wire, Padding padding) {
  return [=](const Segment& segment) -> SegmentSizes {
    const ValuesLayout layout{segment.count, wire};
    return {padding == Padding::kSection ? layout.bytes() : layout.values_bytes(),
            ceil_div(segment.count, kUnitValues)};
  };
}

/// The launches of a call that writes wire values. Nobody reads the step, so the last one advances
/// it.
template <class Kernel, class Call, class EntryOf>
void launch_cast(Queue& queue, Kernel& kernel, const Call& call, Dtype wire,
                 const DeviceFrame* frame, const EntryOf& entry_of) {
  prepare_next_words(queue, call);
  if (frame != nullptr) prepare_seal(queue, *frame);
  kernel.target.overflows =
      call.words_out == nullptr ? call.execution.overflows : &call.words_out->overflows;
  for_each_table(kernel.table, call.segments, cast_sizes(wire, kernel.target.padding), entry_of,
                 [&](LaunchPlace place) {
                   kernel.seal = frame == nullptr ? FrameSeal{} : seal_of(*frame, place);
                   kernel.next = place.is_last ? next_words_of_call(call) : NextWords{};
                   launch_units(queue, kernel);
                 });
}

/// Where an encode writes: into a frame that it seals, or bare values times a factor.
struct CastDestination {
  std::byte* values;
  Padding padding;
  const DeviceFrame* frame;  // null: bare values
  float factor;
};
CastDestination framed(const DeviceFrame& frame) {
  return {frame.frame + sizeof(FrameHeader), Padding::kSection, &frame, 1};
}

template <typename E>
constexpr Lengths kEncodeLengths =
    std::is_same_v<E, NoResidual> ? Lengths::kFewAndMost : Lengths::kFew;

template <typename Wire, class Kernel>
void launch_encode(Kernel& kernel, const CastDestination& to, const EncodeCall& call) {
  Queue queue(call.execution.stream);
  kernel.target = {to.values, to.padding, nullptr};
  launch_cast(queue, kernel, call, DtypeOf<Wire>::value, to.frame,
              [&](std::size_t i, std::uint64_t offset) { return encode_entry(call, i, offset); });
}

template <class Format, typename Wire, typename G, typename E>
void encode_as(const CastDestination& to, const EncodeCall& call) {
  if constexpr (Format::kLossless && std::is_same_v<Wire, G> && std::is_same_v<E, NoResidual>)
    if (to.factor == 1)
      return visit_lengths(call.segments.size(), 0, [&](auto segments, auto) {
        CopyKernel<G, segments()> kernel;
        launch_encode<Wire>(kernel, to, call);
      });
  visit_lengths<kEncodeLengths<E>>(call.segments.size(), 0, [&](auto segments, auto) {
    CastEncodeKernel<Wire, G, E, segments()> kernel;
    kernel.words = words_of_call(call);
    kernel.factor = to.factor;
    launch_encode<Wire>(kernel, to, call);
  });
}

/// Lists frames or bare values; `fill(queue, list)` does it for a list of any length.
template <typename Wire, typename T, class Fill>
void decode_list(const DecodeCall& call, Padding padding, const Fill& fill) {
  Queue queue(call.execution.stream);
  visit_decode(call, [&](auto mode, auto segments, auto frames) {
    CastDecodeKernel<Wire, T, mode(), segments(), frames()> kernel;
    fill(queue, kernel.list, launches_of(kernel.table, call.segments));
    kernel.factor = call.factor;
    for_each_table(
        kernel.table, call.segments, cast_sizes(DtypeOf<Wire>::value, padding),
        [&](std::size_t i, std::uint64_t offset) { return decode_entry(call, i, offset); },
        [&](LaunchPlace) { launch_units(queue, kernel); });
  });
}

}  // namespace

template <class Format>
void cast_device_encode(const EncodeCall& call, const DeviceFrame& frame) {
  visit_value_type(dtype_of(call.gradients), [&]<typename G>(G) {
    visit_residual_type(call.states, [&]<typename E>(E) {
      encode_as<Format, typename Format::template Wire<G>, G, E>(framed(frame), call);
    });
  });
}

template <class Format>
void cast_device_encode_native(const EncodeCall& call, float factor, ValueSpan values) {
  const CastDestination bare{values.pointer(), Padding::kNone, nullptr, factor};
  visit_value_type(dtype_of(call.gradients), [&]<typename G>(G) {
    encode_as<Format, Bare<Format, G>, G, NoResidual>(bare, call);
  });
}

template <class Format>
void cast_device_decode(const DecodeCall& call, const FrameHeader& expected) {
  visit_value_type(dtype_of(call.outputs), [&]<typename T>(T) {
    decode_list<typename Format::template Wire<T>, T>(
        call, Padding::kSection,
        [&]<unsigned kMost>(Queue& queue, FrameList<kMost>& list, Launches launches) {
          list = list_frames<kMost>(queue, call.frames, expected, call.execution, launches);
        });
  });
}

template <class Format>
void cast_device_decode_native(const DecodeCall& call, ConstValueSpan values) {
  visit_value_type(dtype_of(call.outputs), [&]<typename T>(T) {
    decode_list<Bare<Format, T>, T>(call, Padding::kNone,
                                    [&]<unsigned kMost>(Queue&, FrameList<kMost>& list, Launches) {
                                      list = {};
                                      list.header_bytes = 0;
                                      list.frames = 1;
                                      list.frame[0] = values.pointer();
                                    });
  });
}

template <class Format>
void cast_device_reduce(const ReduceCall& call, const DeviceFrame& frame) {
  Queue queue(call.execution.stream);
  const auto entry_of = [&](std::size_t i, std::uint64_t offset) {
    return reduce_entry(call, i, offset);
  };
  visit_value_type(call.dtype, [&]<typename G>(G) {
    using Wire = typename Format::template Wire<G>;
    visit_residual_type(call.states, [&]<typename E>(E) {
      visit_lengths(call.segments.size(), call.frames.size(), [&](auto segments, auto frames) {
        CastReduceKernel<Wire, E, segments(), frames()> kernel;
        kernel.list = list_frames<frames()>(queue, call.frames, frame.header, call.execution,
                                            launches_of(kernel.table, call.segments));
        const CastDestination to = framed(frame);
        kernel.target = {to.values, to.padding, nullptr};
        kernel.words = words_of_call(call);
        kernel.factor = call.factor;
        launch_cast(queue, kernel, call, DtypeOf<Wire>::value, to.frame, entry_of);
      });
    });
  });
}

#define TERSOR_INSTANTIATE(Format)                                                      \
  template void cast_device_encode<Format>(const EncodeCall&, const DeviceFrame&);      \
  template void cast_device_encode_native<Format>(const EncodeCall&, float, ValueSpan); \
  template void cast_device_decode<Format>(const DecodeCall&, const FrameHeader&);      \
  template void cast_device_decode_native<Format>(const DecodeCall&, ConstValueSpan);   \
  template void cast_device_reduce<Format>(const ReduceCall&, const DeviceFrame&);
TERSOR_CAST_FORMATS(TERSOR_INSTANTIATE)

}  // namespace tersor::kernels
