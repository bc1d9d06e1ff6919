// The entry of a codec's source file in the registry: its name and its factory.
#pragma once

#include "codecs/options.h"

#include <tersor/codec.h>
#include <tersor/wire.h>

#include <memory>
#include <string>
#include <utility>

namespace tersor::encoding {

/// A codec of the registry.
struct CodecEntry {
  CodecInfo info;
  /// Throws InvalidArgumentError for an invalid option.
  std::shared_ptr<const Codec> (*make)(const CodecSpec& spec, const CodecInfo& info);
  /// Returns the options in a header of this codec, in the form of a spec. Null: a header has no
  /// options.
  std::string (*options_of)(const FrameHeader& header) = nullptr;
};

/// Makes an entry for a codec class constructed from its canonical spec and the result of
/// Own::read.
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

/// Returns the options in a header of any codec; empty if the header has none.
std::string options_of(const FrameHeader& header);

}  // namespace tersor::encoding
