// The codecs of this build: the only list of them that is written by hand.

#include "codecs/registry.h"

#include <tersor/error.h>
#include <tersor/isa.h>

#include <array>
#include <string>

// One line a codec: codecs/<name>.cc defines `CodecEntry <name>_entry()`.
#define TERSOR_CODECS(X) \
  X(none)                \
  X(bf16)                \
  X(f16)                 \
  X(int8)                \
  X(int4)                \
  X(topk)                \
  X(intsum)

namespace tersor {
namespace encoding {

#define TERSOR_DECLARE(name) CodecEntry name##_entry();
TERSOR_CODECS(TERSOR_DECLARE)
#undef TERSOR_DECLARE

namespace {

#define TERSOR_ENTRY(name) name##_entry(),
const auto& entries() {
  static const std::array kEntries = {TERSOR_CODECS(TERSOR_ENTRY)};
  return kEntries;
}
#undef TERSOR_ENTRY

}  // namespace
}  // namespace encoding

std::vector<CodecInfo> codecs() {
  std::vector<CodecInfo> infos;
  for (const auto& entry : encoding::entries()) infos.push_back(entry.info);
  return infos;
}

std::shared_ptr<const Codec> make_codec(std::string_view spec) {
  current_isa();  // a wrong TERSOR_ISA shows here, not in the first encode
  const CodecSpec parsed = parse_spec(spec);
  std::string names;
  for (const auto& entry : encoding::entries()) {
    if (entry.info.name == parsed.name) return entry.make(parsed, entry.info);
    names += (names.empty() ? "" : ", ") + std::string(entry.info.name);
  }
  throw InvalidArgument("there is no codec \"" + parsed.name + "\"; the codecs are " + names);
}

}  // namespace tersor
