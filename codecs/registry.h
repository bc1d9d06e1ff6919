// What a codec's file gives to the registry: what it is called, and how it is made.
#pragma once

#include "codecs/options.h"

#include <tersor/codec.h>
#include <tersor/wire.h>

#include <memory>
#include <string>
#include <utility>

namespace tersor::encoding {

struct CodecEntry {
  CodecInfo info;
  /// Throws InvalidArgument where an option is wrong.
  std::shared_ptr<const Codec> (*make)(const CodecSpec& spec, const CodecInfo& info);
  /// The options that a header of this codec says, as in a spec. Null: it says none.
  std::string (*options_of)(const FrameHeader& header) = nullptr;
};

/// Of a codec that is made of its canonical spec and of what Own::read makes of a spec's options.
template <class Own>
CodecEntry entry_of(CodecInfo info, std::string (*options_of)(const FrameHeader&) = nullptr) {
  const auto make = [](const CodecSpec& spec,
                       const CodecInfo& own) -> std::shared_ptr<const Codec> {
    OptionReader reader(spec, own);
    const auto options = Own::read(reader);
    return std::make_shared<Own>(reader.canonical(), options);
  };
  return {std::move(info), make, options_of};
}

/// Those that any header says; empty where it says none.
std::string options_of(const FrameHeader& header);

}  // namespace tersor::encoding
