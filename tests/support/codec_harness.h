// Short forms of a codec's calls for tests. A harness holds a list of segments with gradients,
// residuals and outputs of a single dtype in guarded memory, and calls encode, decode and reduce in
// a single line each.
#pragma once

#include "tests/support/codec_under_test.h"
#include "tests/support/errors.h"
#include "tests/support/guarded.h"

#include <tersor/codec.h>
#include <tersor/isa.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tersor::test {

/// The layout of a harness. The defaults fit most tests.
struct HarnessOptions {
  Dtype dtype = Dtype::kF32;
  Dtype residual_dtype = Dtype::kF32;
  std::size_t shift = 0;  ///< distance of each span from a 64-byte boundary, in values
  unsigned threads = 1;
  std::uint64_t seed = 1;
  Checksum checksum = Checksum::kOn;
  float scale = 1.0f;  ///< standard deviation of the gradients
  std::size_t contributions = 4;
  std::size_t rows = 0;  ///< rows of each segment; 0: segments without a shape
  Memory memory = default_memory();
};

/// Segments with Gaussian gradients. Residuals are Gaussian with a tenth of the gradients' scale.
class CodecHarness {
 public:
  CodecHarness(std::string_view spec, const std::vector<std::size_t>& counts,
               const HarnessOptions& options = {});

  const CodecUnderTest& codec() const { return codec_; }
  Plan plan() const;
  bool has_states() const { return codec_.has_feedback(); }

  /// Prepared calls. A test may change the calls before use.
  EncodeCall encode_call();
  DecodeCall decode_call(const std::vector<GuardedBytes>& frames);
  ReduceCall reduce_call(const std::vector<GuardedBytes>& frames);

  GuardedBytes encode();
  GuardedBytes encode(const EncodeCall& call);
  void decode(const std::vector<GuardedBytes>& frames, DecodeMode mode = DecodeMode::kAssign,
              float factor = 1.0f);
  GuardedBytes reduce(const std::vector<GuardedBytes>& frames, float factor = 1.0f);

  /// Redraws all gradients from `seed`.
  void draw(std::uint64_t seed);
  /// Stores `values`, rounded to the dtype, as the gradient of `segment`.
  void set_gradient(const std::vector<float>& values, std::size_t segment = 0);
  void set_residual(const std::vector<float>& values, std::size_t segment = 0);
  void set_output(const std::vector<float>& values, std::size_t segment = 0);
  /// Sets the codec's memory (state kept between steps, updated in place). Initially zeros.
  void set_memory(const std::vector<float>& values, std::size_t segment = 0);
  std::vector<float> memory(std::size_t segment = 0) const { return memories_[segment].floats(); }
  /// Makes residual_out the same memory as residual_in from now on.
  void share_residuals();

  std::vector<float> gradient(std::size_t segment = 0) const;
  std::vector<float> residual_in(std::size_t segment = 0) const;
  std::vector<float> residual_out(std::size_t segment = 0) const;
  std::vector<float> output(std::size_t segment = 0) const;
  /// The codec's round state.
  ConstByteSpan round_state() const { return round_state_->span(); }
  /// The values of all segments, concatenated.
  std::vector<float> outputs() const;
  std::vector<float> residuals_out() const;
  std::vector<float> all_memory() const;
  /// p = a · g + b · e of the wire format, or g if the codec has no feedback.
  std::vector<float> sent(std::size_t segment = 0) const;

  /// True if no guard was overwritten.
  bool intact() const;

  std::vector<Segment> segments;
  StateWords words;
  RandomSource random{.key = 77, .step = 3};
  FrameIdentity identity;

 private:
  Execution execution();
  PlanRequest request() const;
  std::span<const SegmentMemory> memory_spans();

  CodecUnderTest codec_;
  HarnessOptions options_;
  std::unique_ptr<Threads> threads_;
  std::vector<GuardedValues> gradients_, residuals_in_, residuals_out_, outputs_, memories_;
  bool shared_ = false;
  std::optional<GuardedBytes> workspace_, round_state_;
  // Storage behind the calls' spans.
  std::vector<ConstValueSpan> gradient_spans_;
  std::vector<SegmentState> states_;
  std::vector<SegmentMemory> memory_spans_;
  std::vector<ValueSpan> output_spans_;
  std::vector<ConstByteSpan> frame_spans_;
};

/// Gaussian values with standard deviation `scale`. A seed gives the same values on every machine.
std::vector<float> gaussian(std::size_t count, std::uint64_t seed, float scale = 1.0f);

/// The Euclidean norm of values, and of a difference.
double norm_of(const std::vector<float>& values);
double distance(std::vector<float> a, const std::vector<float>& b);

/// Returns a host frame without its unused capacity. Payloads of entropy are often shorter.
GuardedBytes without_rest(const GuardedBytes& frame);

/// The bytes after a frame's header.
inline ConstByteSpan payload_of(const GuardedBytes& frame) {
  return frame.span().subspan(sizeof(FrameHeader));
}

/// Changes a frame's header and updates the checksum.
void change_header(ByteSpan frame, const std::function<void(FrameHeader&)>& change);

/// Forces an instruction set while this object lives.
class ForcedIsa {
 public:
  explicit ForcedIsa(Isa isa) { force_isa(isa); }
  ~ForcedIsa() { force_isa(std::nullopt); }
  ForcedIsa(const ForcedIsa&) = delete;
  ForcedIsa& operator=(const ForcedIsa&) = delete;
};

}  // namespace tersor::test
