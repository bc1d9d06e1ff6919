// What a codec's file gives to the registry: what it is called, and how it is made.
#pragma once

#include <tersor/codec.h>

#include <memory>

namespace tersor::encoding {

struct CodecEntry {
  CodecInfo info;
  /// Throws InvalidArgument where an option is wrong.
  std::shared_ptr<const Codec> (*make)(const CodecSpec& spec, const CodecInfo& info);
};

}  // namespace tersor::encoding
