// A codec as called by the harnesses. Host calls pass through. A device call copies the inputs to
// the device and waits for the result, so the same tests cover hosts and devices.
#pragma once

#include <tersor/codec.h>

#include <cstddef>
#include <memory>
#include <string_view>

namespace tersor::test {

class CodecUnderTest {
 public:
  explicit CodecUnderTest(std::string_view spec) : codec_(make_codec(spec)) {}

  const CodecSpec& spec() const { return codec_->spec(); }
  std::uint16_t id() const { return codec_->id(); }
  bool has_feedback() const { return codec_->has_feedback(); }
  CodecTraits traits() const { return codec_->traits(); }
  std::size_t memory_count(const Segment& segment) const { return codec_->memory_count(segment); }
  Plan plan(const PlanRequest& request) const { return codec_->plan(request); }
  const Codec& results() const { return codec_->results(); }

  void encode(const EncodeCall& call, ByteSpan frame) const;
  /// Throws a fault detected on a device as a WireError, as on the host.
  void decode(const DecodeCall& call) const;
  void reduce(const ReduceCall& call, ByteSpan frame) const;
  void encode_native(const EncodeCall& call, float factor, ValueSpan values) const;
  void decode_native(const DecodeCall& call, ConstValueSpan values) const;
  void absorb(const DecodeCall& call, ConstValueSpan values) const;

 private:
  std::shared_ptr<const Codec> codec_;
};

}  // namespace tersor::test
