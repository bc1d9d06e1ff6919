// A codec's calls made short for tests: lists of segments with gradients, residuals and outputs of
// one dtype in guarded memory, on which encode, decode and reduce are one line each.
#pragma once

#include "tests/support/codec_under_test.h"
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

/// How a harness is laid out. The defaults are what most tests want.
struct HarnessOptions {
  Dtype dtype = Dtype::kF32;
  Dtype residual_dtype = Dtype::kF32;
  std::size_t shift = 0;  ///< values between a 64-byte boundary and each span
  unsigned threads = 1;
  std::uint64_t seed = 1;
  Checksum checksum = Checksum::kOn;
  float scale = 1.0f;  ///< the gradient's magnitude
  std::size_t contributions = 4;
  std::size_t rows = 0;  ///< of each segment; 0: it has no shape
  Memory memory = default_memory();
};

/// Segments with what belongs to them. Gradients are Gaussian, residuals a tenth of that.
class CodecHarness {
 public:
  CodecHarness(std::string_view spec, const std::vector<std::size_t>& counts,
               const HarnessOptions& options = {});

  const CodecUnderTest& codec() const { return codec_; }
  Plan plan() const;
  bool has_states() const { return codec_.has_feedback(); }

  /// The calls, ready to be changed before they are made.
  EncodeCall encode_call();
  DecodeCall decode_call(const std::vector<GuardedBytes>& frames);
  ReduceCall reduce_call(const std::vector<GuardedBytes>& frames);

  GuardedBytes encode();
  GuardedBytes encode(const EncodeCall& call);
  void decode(const std::vector<GuardedBytes>& frames, DecodeMode mode = DecodeMode::kAssign,
              float factor = 1.0f);
  GuardedBytes reduce(const std::vector<GuardedBytes>& frames, float factor = 1.0f);

  /// Other values in all gradients.
  void draw(std::uint64_t seed);
  /// `values` as the only (or given) segment's gradient, rounded to the dtype.
  void set_gradient(const std::vector<float>& values, std::size_t segment = 0);
  void set_residual(const std::vector<float>& values, std::size_t segment = 0);
  void set_output(const std::vector<float>& values, std::size_t segment = 0);
  /// What the codec remembers from step to step, in place; zeros at first.
  void set_memory(const std::vector<float>& values, std::size_t segment = 0);
  std::vector<float> memory(std::size_t segment = 0) const { return memories_[segment].floats(); }
  /// From here on residual_out is residual_in.
  void share_residuals();

  std::vector<float> gradient(std::size_t segment = 0) const;
  std::vector<float> residual_in(std::size_t segment = 0) const;
  std::vector<float> residual_out(std::size_t segment = 0) const;
  std::vector<float> output(std::size_t segment = 0) const;
  /// What the codec remembers between its rounds.
  ConstByteSpan kept() const { return kept_->span(); }
  /// Of all segments, one behind the other.
  std::vector<float> outputs() const;
  std::vector<float> residuals_out() const;
  std::vector<float> all_memory() const;
  /// p = a · g + b · e as the words say; g where there is no feedback.
  std::vector<float> sent(std::size_t segment = 0) const;

  /// True where no guard was touched.
  bool intact() const;

  std::vector<Segment> segments;
  StateWords words;
  RandomSource random{.key = 77, .step = 3};
  FrameIdentity identity;

 private:
  Execution execution();
  std::span<const SegmentMemory> memory_spans();

  CodecUnderTest codec_;
  HarnessOptions options_;
  std::unique_ptr<Threads> threads_;
  std::vector<GuardedValues> gradients_, residuals_in_, residuals_out_, outputs_, memories_;
  bool shared_ = false;
  std::optional<GuardedBytes> workspace_, kept_;
  // What the calls' spans point to.
  std::vector<ConstValueSpan> gradient_spans_;
  std::vector<SegmentState> states_;
  std::vector<SegmentMemory> memory_spans_;
  std::vector<ValueSpan> output_spans_;
  std::vector<ConstByteSpan> frame_spans_;
};

/// Gaussian values of magnitude `scale`; the same for the same seed on every machine.
std::vector<float> gaussian(std::size_t count, std::uint64_t seed, float scale = 1.0f);

/// The Euclidean length of values, and of a difference.
double norm_of(const std::vector<float>& values);
double distance(std::vector<float> a, const std::vector<float>& b);

/// What stands behind a frame's header.
inline ConstByteSpan payload_of(const GuardedBytes& frame) {
  return frame.span().subspan(sizeof(FrameHeader));
}

/// Changes a frame's header and makes its checksum right again.
void change_header(ByteSpan frame, const std::function<void(FrameHeader&)>& change);

/// Forces an instruction set while it lives.
class ForcedIsa {
 public:
  explicit ForcedIsa(Isa isa) { force_isa(isa); }
  ~ForcedIsa() { force_isa(std::nullopt); }
  ForcedIsa(const ForcedIsa&) = delete;
  ForcedIsa& operator=(const ForcedIsa&) = delete;
};

/// What an error says when `body` throws it; "" where it throws none, another type's goes through.
template <typename Error>
std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace tersor::test
