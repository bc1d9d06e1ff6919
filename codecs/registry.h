// What a codec's file gives to the registry: what it is called, and how it is made.
#pragma once

#include <tersor/codec.h>
#include <tersor/wire.h>

#include <memory>
#include <string>

namespace tersor::encoding {

struct CodecEntry {
  CodecInfo info;
  /// Throws InvalidArgument where an option is wrong.
  std::shared_ptr<const Codec> (*make)(const CodecSpec& spec, const CodecInfo& info);
  /// The options that a header of this codec says, as in a spec. Null: it says none.
  std::string (*options_of)(const FrameHeader& header) = nullptr;
};

/// Those that any header says; empty where it says none.
std::string options_of(const FrameHeader& header);

}  // namespace tersor::encoding
