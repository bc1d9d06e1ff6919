// The codecs of this build: the formats of the codec families, and a line for each other codec.

#include "codecs/registry.h"

#include "codecs/cast_codec.h"
#include "codecs/quantize_codec.h"
#include "codecs/result_codec.h"
#include "kernels/cast/formats.h"
#include "kernels/quantize/formats.h"

#include <tersor/error.h>
#include <tersor/isa.h>

#include <array>

// The file codecs/<name>.cc defines `CodecEntry <name>_entry()`.
#define TERSOR_CODECS(X) \
  X(topk)                \
  X(intsum)              \
  X(hadamard)            \
  X(blocktopk)           \
  X(lowrank)             \
  X(entropy)

namespace tersor {
namespace encoding {

#define TERSOR_DECLARE(name) CodecEntry name##_entry();
TERSOR_CODECS(TERSOR_DECLARE)
#undef TERSOR_DECLARE

namespace {

#define TERSOR_CAST_ENTRY(Format) cast_entry<kernels::Format>(),
#define TERSOR_QUANTIZE_FORMAT(Format) quantize_entry<kernels::Format>(),
#define TERSOR_QUANTIZE_REGISTRY
#define TERSOR_ENTRY(name) name##_entry(),
const auto& entries() {
  static const std::array kEntries = {TERSOR_CAST_FORMATS(TERSOR_CAST_ENTRY)
#include "kernels/quantize/formats.h"
                                          TERSOR_CODECS(TERSOR_ENTRY)};
  return kEntries;
}
#undef TERSOR_ENTRY
#undef TERSOR_QUANTIZE_REGISTRY
#undef TERSOR_QUANTIZE_FORMAT
#undef TERSOR_CAST_ENTRY

}  // namespace

std::string options_of(const FrameHeader& header) {
  for (const CodecEntry& entry : entries())
    if (entry.info.id == header.codec_id && entry.options_of != nullptr)
      return entry.options_of(header);
  return {};
}

}  // namespace encoding

std::vector<CodecInfo> codecs() {
  std::vector<CodecInfo> infos;
  for (const auto& entry : encoding::entries()) infos.push_back(entry.info);
  return infos;
}

std::shared_ptr<const Codec> make_codec(std::string_view spec) {
  current_isa();  // reports an invalid TERSOR_ISA here rather than in the first encode
  const CodecSpec parsed = parse_spec(spec);
  for (const auto& [key, value] : parsed.options)
    if (key == encoding::kResultOption) return encoding::make_result_codec(parsed);
  std::string names;
  for (const auto& entry : encoding::entries()) {
    if (entry.info.name == parsed.name) return entry.make(parsed, entry.info);
    names += (names.empty() ? "" : ", ") + std::string(entry.info.name);
  }
  throw InvalidArgumentError("there is no codec \"" + parsed.name + "\"; the codecs are " + names);
}

}  // namespace tersor
