// Codecs of one round whose payload travels in a frame: what stands between a checked call and a
// codec's own arithmetic, on a host or on a device.
#pragma once

#include "codecs/calls.h"
#include "codecs/device.h"
#include "codecs/frame.h"
#include "codecs/slices.h"
#include "codecs/sums.h"

#include <tersor/codec.h>

#include <concepts>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace tersor::encoding {

/// What such a codec says of itself: all but `format` are about one call. `device_…` queues, after
/// no more than a look at the frames' lengths; `host_…` checks the frames that it reads. A codec
/// whose frames are also reduced has `host_reduce` and `device_reduce`, and exchanges them by
/// two-shot, too.
template <class Own>
concept FrameFormat = requires(const Own& own, const Segment& segment, const PlanRequest& request,
                               const EncodeCall& encode, const DecodeCall& decode,
                               const FrameHeader& header, const kernels::DeviceFrame& device,
                               ByteSpan frame) {
  { own.format() } -> std::same_as<PayloadFormat>;  // but for its bytes
  { own.segment_bytes(segment, Dtype::kF32) } -> std::same_as<std::size_t>;
  { own.workspace_bytes(request) } -> std::same_as<std::size_t>;
  own.host_encode(encode, header, frame);
  own.device_encode(encode, device);
  own.host_decode(decode, header);
  own.device_decode(decode, header);
};

template <class Own>
concept ReducedFrameFormat = FrameFormat<Own> &&
    requires(const Own& own, const ReduceCall& reduce, const FrameHeader& header,
             const kernels::DeviceFrame& device, ByteSpan frame) {
  own.host_reduce(reduce, header, frame);
  own.device_reduce(reduce, device);
};

/// `Own` derives from it, and is a FrameFormat.
template <class Own>
class FrameCodec : public Codec {
 public:
  using Codec::Codec;

 protected:
  PlanSizes plan_sizes(const PlanRequest& request) const override {
    return {.frame_bytes = sizeof(FrameHeader) + payload_bytes(request.segments, request.dtype),
            .workspace_bytes = own().workspace_bytes(request)};
  }

  std::vector<Round> plan_rounds(const PlanRequest&) const override {
    if constexpr (ReducedFrameFormat<Own>)
      return {{.exchanges = {Exchange::kTwoShot, Exchange::kGather}}};
    return {{.exchanges = {Exchange::kGather}}};
  }

  void do_encode(const EncodeCall& call, ByteSpan frame) const override {
    const FrameHeader header = header_of(call, dtype_of(call.gradients));
    if constexpr (kHasDeviceKernels)
      if (memory_of(call) == Memory::kDevice)
        return own().device_encode(call, {frame.data(), header});
    own().host_encode(call, header, frame);
  }

  void do_decode(const DecodeCall& call) const override {
    const FrameHeader expected = header_of(call, dtype_of(call.outputs));
    if constexpr (kHasDeviceKernels)
      if (memory_of(call) == Memory::kDevice) {
        check_frame_bytes(expected, call.frames);
        return own().device_decode(call, expected);
      }
    own().host_decode(call, expected);
  }

  void do_reduce(const ReduceCall& call, ByteSpan frame) const override {
    if constexpr (ReducedFrameFormat<Own>) {
      const FrameHeader header = header_of(call, call.dtype);
      if constexpr (kHasDeviceKernels)
        if (memory_of(call) == Memory::kDevice) {
          check_frame_bytes(header, call.frames);
          return own().device_reduce(call, {frame.data(), header});
        }
      return own().host_reduce(call, header, frame);
    }
    Codec::do_reduce(call, frame);
  }

 private:
  const Own& own() const { return static_cast<const Own&>(*this); }

  std::size_t payload_bytes(std::span<const Segment> segments, Dtype dtype) const {
    std::size_t bytes = 0;
    for (const Segment& segment : segments) bytes += own().segment_bytes(segment, dtype);
    return bytes;
  }

  template <typename Call>
  FrameHeader header_of(const Call& call, Dtype dtype) const {
    PayloadFormat format = own().format();
    format.bytes = payload_bytes(call.segments, dtype);
    return frame_header({*this, call.segments, dtype, call.identity}, format);
  }
};

/// Workspace of codecs that look at many frames side by side: on a device, or on hosts as `View`s.
template <class View>
std::size_t views_workspace_bytes(const PlanRequest& request) {
  return request.memory == Memory::kDevice
             ? kernels::device_frames_bytes(request.contributions)
             : ViewList<View>::workspace_bytes(request.contributions, request.threads);
}

/// The same, of those that sum them meanwhile.
template <class View>
std::size_t summed_workspace_bytes(const PlanRequest& request) {
  const bool on_host = request.memory == Memory::kHost;
  return views_workspace_bytes<View>(request) +
         (on_host ? FrameSums::workspace_bytes(request.contributions) : 0);
}

}  // namespace tersor::encoding
