// Specs of all registered codecs. Tests with these functions cover new codecs automatically.
#pragma once

#include <tersor/codec.h>

#include <string>
#include <vector>

namespace tersor::test {

/// The default spec of a codec and all combinations of option keywords, without feedback. Numeric
/// options take several values in turn.
std::vector<std::string> example_specs(const CodecInfo& codec);

/// True if some round of the spec's codec supports `exchange`.
bool offers(const std::string& spec, Exchange exchange);

/// The codecs for segments of any shape.
std::vector<CodecInfo> flat_codecs();
/// False if the spec's codec encodes host memory only. True without a device.
bool runs_on_devices(const std::string& spec);

/// Names of the codecs with frames, and of the native-only codecs.
std::vector<std::string> framed_codecs();
std::vector<std::string> native_codecs();

/// Example specs of the codecs, without and with feedback.
std::vector<std::string> framed_specs();
std::vector<std::string> framed_device_specs();  ///< for device memory
std::vector<std::string> native_specs();

/// A spec as a valid GoogleTest name.
std::string test_name(std::string spec);

}  // namespace tersor::test
