// The interface behind <tersor/code_sections.h>.
#pragma once

#include <tersor/code_sections.h>

namespace tersor::encoding {

/// A codec whose codes and scales other programs read.
class CodeSource {
 public:
  virtual std::vector<CodeSections> code_sections(std::span<const Segment> segments) const = 0;
  /// The header of a frame of these segments.
  virtual FrameHeader code_header(std::span<const Segment> segments, Dtype dtype,
                                  const FrameIdentity& identity) const = 0;

 protected:
  ~CodeSource() = default;
};

}  // namespace tersor::encoding
