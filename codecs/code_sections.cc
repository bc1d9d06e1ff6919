#include "codecs/code_sections.h"

#include "codecs/checks.h"
#include "codecs/frame.h"

namespace tersor {
namespace {

const encoding::CodeSource& source_of(const Codec& codec) {
  const auto* source = dynamic_cast<const encoding::CodeSource*>(&codec);
  if (source == nullptr)
    encoding::throw_unsupported(codec,
                                "has no codes for other programs; use mxfp8 or nvfp4, or decode");
  return *source;
}

}  // namespace

std::vector<CodeSections> code_sections(const Codec& codec, std::span<const Segment> segments) {
  return source_of(codec).code_sections(segments);
}

void check_code_frame(const Codec& codec, std::span<const Segment> segments, Dtype dtype,
                      ConstByteSpan frame, const FrameIdentity& identity) {
  const FrameHeader expected = source_of(codec).code_header(segments, dtype, identity);
  encoding::check_frames(expected, {&frame, 1}, nullptr);
}

}  // namespace tersor
