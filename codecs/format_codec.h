// Codecs described by formats: frames of a single round, raw values of one or several rounds, or
// both. This base class connects checked calls with a format's arithmetic, on hosts and devices. It
// handles headers, rounds, raw values and unsupported calls.
#pragma once

#include "codecs/calls.h"
#include "codecs/checks.h"
#include "codecs/frame.h"
#include "codecs/slices.h"
#include "codecs/sums.h"
#include "kernels/device/device_frame.h"

#include <tersor/codec.h>

#include <concepts>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace tersor::encoding {

/// The functions of a codec with frames; all except `format` work on a call. Functions named
/// device_… queue work and check only the lengths of frames. Functions named host_… check all input
/// frames. A codec with `host_reduce` and `device_reduce` also supports two-shot.
template <class Own>
concept FrameFormat = requires(const Own& own, const Segment& segment, const PlanRequest& request,
                               const EncodeCall& encode, const DecodeCall& decode,
                               const FrameHeader& header, const kernels::DeviceFrame& device,
                               ByteSpan frame) {
  { own.format() } -> std::same_as<PayloadFormat>;  // without its bytes
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

/// The raw values of a round.
struct RawValues {
  Dtype dtype;
  std::size_t count;
};

/// The functions of a codec for native sums. The dtype is the gradient's dtype. Calls
/// contain their round. `host_encode_raw` returns the number of finite values that became
/// infinite. A codec of a single round has `check_raw_sent`. This function throws if options or
/// feedback exclude a native sum.
template <class Own>
concept RawFormat = requires(const Own& own, std::span<const Segment> segments,
                             const EncodeCall& encode, const DecodeCall& decode, ValueSpan sent,
                             ConstValueSpan sums) {
  { own.raw_values(segments, Dtype::kF32, 0u) } -> std::same_as<RawValues>;
  { own.host_encode_raw(encode, 1.0f, sent) } -> std::same_as<std::size_t>;
  own.device_encode_raw(encode, 1.0f, sent);
  own.host_decode_raw(decode, sums);
  own.device_decode_raw(decode, sums);
};

/// A codec of one or two rounds (`exchanges()`) with raw values only. The result of the first of
/// two rounds is stored in the round state.
template <class Own>
concept AbsorbingFormat = RawFormat<Own> &&
    requires(const Own& own, const PlanRequest& request, const DecodeCall& decode,
             ConstValueSpan sums) {
  { own.exchanges() } -> std::same_as<std::span<const Exchange>>;
  { own.sizes(request) } -> std::same_as<PlanSizes>;  // without its frame
  own.host_absorb(decode, sums);
  own.device_absorb(decode, sums);
};

/// Base class of a codec `Own`, which is a FrameFormat, a RawFormat or both.
template <class Own>
class FormatCodec : public Codec {
 public:
  using Codec::Codec;

 protected:
  const Own& own() const { return static_cast<const Own&>(*this); }

  /// The header of a call's frames.
  template <typename Call>
  FrameHeader header_of(const Call& call) const {
    PayloadFormat format = own().format();
    format.bytes = payload_bytes(call.segments, dtype_of(call));
    return frame_header({*this, call.segments, dtype_of(call), call.identity}, format);
  }

  PlanSizes plan_sizes(const PlanRequest& request) const final {
    PlanSizes sizes;
    if constexpr (AbsorbingFormat<Own>)
      sizes = own().sizes(request);
    else
      sizes = {.frame_bytes = payload_bytes(request.segments, request.dtype),
               .workspace_bytes = own().workspace_bytes(request)};
    sizes.frame_bytes += sizeof(FrameHeader);
    return sizes;
  }

  std::vector<Round> plan_rounds(const PlanRequest& request) const override {
    std::vector<Round> rounds;
    if constexpr (AbsorbingFormat<Own>)
      for (const Exchange exchange : own().exchanges()) {
        const auto round = static_cast<unsigned>(rounds.size());
        const RawValues raw = own().raw_values(request.segments, request.dtype, round);
        rounds.push_back({{exchange}, raw.dtype, raw.count});
      }
    else if constexpr (ReducedFrameFormat<Own>)
      rounds.push_back({.exchanges = {Exchange::kTwoShot, Exchange::kGather}});
    else
      rounds.push_back({.exchanges = {Exchange::kGather}});
    return rounds;
  }

  void do_encode(const EncodeCall& call, ByteSpan frame) const final {
    if constexpr (FrameFormat<Own>) {
      const FrameHeader header = header_of(call);
      return run(
          call,
          [&] {
            own().device_encode(call, {frame.data(), header});
          },
          [&] { own().host_encode(call, header, frame); });
    }
    throw_no_frames(*this);
  }

  void do_decode(const DecodeCall& call) const final {
    if constexpr (FrameFormat<Own>) {
      const FrameHeader expected = header_of(call);
      const auto on_device = [&] {
        check_frame_bytes(expected, call.frames);
        own().device_decode(call, expected);
      };
      return run(call, on_device, [&] { own().host_decode(call, expected); });
    }
    throw_no_frames(*this);
  }

  void do_reduce(const ReduceCall& call, ByteSpan frame) const final {
    if constexpr (ReducedFrameFormat<Own>) {
      const FrameHeader header = header_of(call);
      const auto on_device = [&] {
        check_frame_bytes(header, call.frames);
        own().device_reduce(call, {frame.data(), header});
      };
      return run(call, on_device, [&] { own().host_reduce(call, header, frame); });
    }
    if constexpr (!FrameFormat<Own>) throw_no_frames(*this);
    throw_unsupported(*this, "does not reduce frames; gather them and decode them all");
  }

  void do_encode_native(const EncodeCall& call, float factor, ValueSpan values) const final {
    if constexpr (RawFormat<Own>) {
      if constexpr (AbsorbingFormat<Own>)
        check_native_factor(*this, factor);
      else
        own().check_raw_sent();
      check_raw(call, {0, last_round()}, values);
      const auto on_host = [&] {
        const StateWords words = words_of(call);
        const std::size_t overflows = own().host_encode_raw(call, factor, values);
        if (!AbsorbingFormat<Own> || call.identity.round == last_round())
          write_words(words, overflows, call.words_out);
      };
      return run(
          call, [&] { own().device_encode_raw(call, factor, values); }, on_host);
    }
    throw_unsupported(*this, "has no raw values for a transport to add; encode frames");
  }

  void do_decode_native(const DecodeCall& call, ConstValueSpan values) const final {
    if constexpr (RawFormat<Own>) {
      check_no_window(*this, call);
      check_raw(call, {last_round(), last_round()}, values);
      return run(
          call, [&] { own().device_decode_raw(call, values); },
          [&] { own().host_decode_raw(call, values); });
    }
    throw_unsupported(*this, "has no raw values for a transport to add; decode frames");
  }

  void do_absorb(const DecodeCall& call, ConstValueSpan values) const final {
    if constexpr (AbsorbingFormat<Own>)
      if (last_round() != 0) {
        check_no_window(*this, call);
        check_raw(call, {0, 0}, values);
        return run(
            call, [&] { own().device_absorb(call, values); },
            [&] { own().host_absorb(call, values); });
      }
    throw_unsupported(*this, "has one round; no sums to absorb");
  }

 private:
  unsigned last_round() const {
    if constexpr (AbsorbingFormat<Own>)
      return static_cast<unsigned>(own().exchanges().size()) - 1;
    else
      return 0;
  }

  /// Runs a call where its memory lies.
  template <class Call, typename OnDevice, typename OnHost>
  static void run(const Call& call, const OnDevice& on_device, const OnHost& on_host) {
    if constexpr (kHasDeviceKernels)
      if (memory_of(call) == Memory::kDevice) return on_device();
    on_host();
  }

  std::size_t payload_bytes(std::span<const Segment> segments, Dtype dtype) const {
    std::size_t bytes = 0;
    for (const Segment& segment : segments) bytes += own().segment_bytes(segment, dtype);
    return bytes;
  }

  /// Checks the round and the raw values of a call. Single-round codecs ignore the round's number.
  template <typename Call>
  void check_raw(const Call& call, std::pair<unsigned, unsigned> rounds,
                 ConstValueSpan values) const {
    if constexpr (AbsorbingFormat<Own>)
      check_round(*this, call.identity, rounds.first, rounds.second);
    const RawValues own_values =
        own().raw_values(call.segments, dtype_of(call), call.identity.round);
    check_native(*this, values, own_values.dtype, own_values.count);
  }
};

}  // namespace tersor::encoding
