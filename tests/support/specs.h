// Specs of all codecs of the registry, so that a new codec is in every test that asks for them.
#pragma once

#include <tersor/codec.h>

#include <string>
#include <vector>

namespace tersor::test {

/// A codec at its defaults, and in all combinations of the words of its options, of which numbers
/// take some values in turn. Without feedback.
std::vector<std::string> example_specs(const CodecInfo& codec);

/// Whether a spec's codec goes so, in any round.
bool offers(const std::string& spec, Exchange exchange);

/// The codecs that take segments of any shape.
std::vector<CodecInfo> flat_codecs();

/// The names of those that send frames, and of those that do not.
std::vector<std::string> framed_codecs();
std::vector<std::string> native_codecs();

/// The examples of these, without feedback and with it.
std::vector<std::string> framed_specs();
std::vector<std::string> native_specs();

}  // namespace tersor::test
