// make_codec for tests: see codec_under_test.h.

#include "codecs/quantize_codec.h"
#include "tests/support/codec_under_test.h"
#include "tests/support/formats.h"

namespace tersor::test {

std::shared_ptr<const Codec> make_codec(std::string_view spec) {
#define TERSOR_QUANTIZE_FORMAT(Format) encoding::quantize_entry<kernels::Format>(),
  static const encoding::CodecEntry entries[] = {
#include "tests/support/formats.h"
  };
#undef TERSOR_QUANTIZE_FORMAT
  const CodecSpec parsed = parse_spec(spec);
  for (const auto& entry : entries)
    if (entry.info.name == parsed.name) return entry.make(parsed, entry.info);
  return tersor::make_codec(spec);
}

}  // namespace tersor::test
