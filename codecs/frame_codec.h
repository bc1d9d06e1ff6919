// The base of codecs with one round of frames and without raw values.
#pragma once

#include "codecs/checks.h"

#include <tersor/codec.h>

namespace tersor::encoding {

class FrameCodec : public Codec {
 protected:
  using Codec::Codec;

  void do_encode_native(const EncodeCall&, float, ValueSpan) const final {
    throw_unsupported(*this, "has no raw values for a transport to add; encode frames");
  }
  void do_decode_native(const DecodeCall&, ConstValueSpan) const final {
    throw_unsupported(*this, "has no raw values for a transport to add; decode frames");
  }
  void do_absorb(const DecodeCall&, ConstValueSpan) const final {
    throw_unsupported(*this, "has one round; no sums to absorb");
  }
};

}  // namespace tersor::encoding
