// How quantising formats are launched on a device: types and lists of a call become kernels. With
// checksums their words are cleared before.

#include "kernels/quantize/body.cuh"
#include "kernels/quantize/kernels.h"

#include TERSOR_QUANTIZE_FORMATS

namespace tersor::kernels {
namespace {

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
  prepare_seal(queue, frame);
  for_each_table(
      kernel.table, call.segments, quantize_sizes<Format>, entry_of, [&](LaunchPlace place) {
        kernel.seal = seal_of(frame, place);
        kernel.next = kAdvances && place.is_last ? next_words_of_call(call) : NextWords{};
        launch_units(queue, kernel);
      });
  if (!kAdvances && call.words_out != nullptr)
    queue.launch(AdvanceWordsKernel{next_words_of_call(call)}, 1);
}

/// Long lists are not of those that have noise or feedback.
template <typename E, NoiseKind kKind>
constexpr Lengths kEncodeLengths =
    std::is_same_v<E, NoResidual>&& kKind == NoiseKind::kNone ? Lengths::kFewAndMost
                                                              : Lengths::kFew;

template <NoiseKind kKind, typename Visitor>
void visit_reduce_lengths(std::size_t segments, std::size_t frames, Visitor&& visitor) {
  if constexpr (kKind == NoiseKind::kAny)  // rare, and slow anyway
    visitor(Constant<kFewSegments>{}, Constant<kMostFrames>{});
  else
    visit_lengths(segments, frames, visitor);
}

}  // namespace

template <class Format>
void quantize_device_encode(const EncodeCall& call, Rounding rounding, const DeviceFrame& frame) {
  Queue queue(call.execution.stream);
  visit_value_type(dtype_of(call.gradients), [&]<typename G>(G) {
    visit_residual_type(call.states, [&]<typename E>(E) {
      visit_noise(rounding, call.segments, [&]<NoiseKind kKind>(Constant<kKind>) {
        visit_lengths<kEncodeLengths<E, kKind>>(call.segments.size(), 0, [&](auto segments, auto) {
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
  visit_value_type(dtype_of(call.outputs), [&]<typename T>(T) {
    visit_decode(call, [&](auto mode, auto segments, auto frames) {
      QuantizeDecodeKernel<Format, T, mode(), segments(), frames()> kernel;
      kernel.list = list_frames<frames()>(queue, call.frames, expected, call.execution,
                                          launches_of(kernel.table, call.segments));
      kernel.factor = call.factor;
      for_each_table(
          kernel.table, call.segments, quantize_sizes<Format>,
          [&](std::size_t i, std::uint64_t offset) { return decode_entry(call, i, offset); },
          [&](LaunchPlace) { launch_units(queue, kernel); });
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
