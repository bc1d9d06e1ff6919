// See codec_harness.h.

#include "tests/support/codec_harness.h"

#include "tests/support/reference.h"

#include <cmath>
#include <numbers>

namespace tersor::test {
namespace {

/// A number in (0, 1).
double uniform(std::uint64_t seed) {
  return (static_cast<double>(mixed(seed) >> 11) + 0.5) * 0x1p-53;
}

/// A table of Gaussian numbers (Box and Muller 1958).
std::vector<double> gaussian_table() {
  std::vector<double> table(1 << 16);
  for (std::size_t i = 0; i < table.size(); ++i)
    table[i] = std::sqrt(-2 * std::log(uniform(2 * i))) *
               std::cos(2 * std::numbers::pi * uniform(2 * i + 1));
  return table;
}

std::vector<float> joined(const std::vector<GuardedValues>& parts) {
  std::vector<float> all;
  for (const GuardedValues& part : parts) {
    const std::vector<float> values = part.floats();
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

void assign(GuardedValues& target, const std::vector<float>& values) {
  const GuardedValues source(values, target.span().dtype(), 0, Memory::kHost);
  std::memcpy(target.span().pointer(), source.span().pointer(), source.bytes().size());
}

bool all_intact(const std::vector<GuardedValues>& list) {
  for (const GuardedValues& values : list)
    if (!values.intact()) return false;
  return true;
}

}  // namespace

double norm_of(const std::vector<float>& values) {
  double squares = 0;
  for (const float value : values) squares += double{value} * value;
  return std::sqrt(squares);
}

double distance(std::vector<float> a, const std::vector<float>& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] -= b[i];
  return norm_of(a);
}

std::vector<float> gaussian(std::size_t count, std::uint64_t seed, float scale) {
  static const std::vector<double> table = gaussian_table();
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t random = mixed((seed << 32) + i);
    const double spread = 1 + static_cast<double>(random >> 40) * 0x1p-28;  // all distinct
    values[i] = scale * static_cast<float>(table[random % table.size()] * spread);
  }
  return values;
}

void change_header(ByteSpan frame, const std::function<void(FrameHeader&)>& change) {
  FrameHeader header;
  std::memcpy(&header, frame.data(), sizeof header);
  change(header);
  std::memcpy(frame.data(), &header, sizeof header);
  if ((header.flags & kFrameHasChecksum) == 0) return;
  header.checksum = frame_checksum(frame);
  std::memcpy(frame.data(), &header, sizeof header);
}

CodecHarness::CodecHarness(std::string_view spec, const std::vector<std::size_t>& counts,
                           const HarnessOptions& options)
    : codec_(spec), options_(options) {
  identity.checksum = options.checksum;
  identity.signature = 0x1122334455667788;
  if (options.threads > 1) threads_ = std::make_unique<Threads>(options.threads);
  for (std::size_t i = 0; i < counts.size(); ++i) {
    segments.push_back({.count = counts[i], .parameter = static_cast<std::uint32_t>(7 + i)});
    if (options.rows != 0) {
      segments.back().rows = options.rows;
      segments.back().columns = counts[i] / options.rows;
    }
    gradients_.emplace_back(counts[i], options.dtype, options.shift, options.memory);
    outputs_.emplace_back(counts[i], options.dtype, options.shift, options.memory);
    residuals_in_.emplace_back(counts[i], options.residual_dtype, options.shift, options.memory);
    residuals_out_.emplace_back(counts[i], options.residual_dtype, options.shift, options.memory);
    const std::size_t remembered = codec_.memory_count(segments.back());
    memories_.emplace_back(std::vector<float>(remembered), Dtype::kF32, 0, options.memory);
  }
  draw(options.seed);
  workspace_.emplace(plan().workspace_bytes, 0, options.memory);
  round_state_.emplace(plan().round_state_bytes, 0, options.memory);
}

PlanRequest CodecHarness::request() const {
  return {.segments = segments,
          .dtype = options_.dtype,
          .contributions = options_.contributions,
          .memory = options_.memory,
          .threads = options_.threads};
}

Plan CodecHarness::plan() const { return codec_.plan(request()); }

void CodecHarness::draw(std::uint64_t seed) {
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const std::size_t count = segments[i].count;
    set_gradient(gaussian(count, 1000 * seed + 2 * i, options_.scale), i);
    set_residual(gaussian(count, 1000 * seed + 2 * i + 1, options_.scale / 10), i);
  }
}

void CodecHarness::set_gradient(const std::vector<float>& values, std::size_t segment) {
  assign(gradients_[segment], values);
}
void CodecHarness::set_residual(const std::vector<float>& values, std::size_t segment) {
  assign(residuals_in_[segment], values);
}
void CodecHarness::set_output(const std::vector<float>& values, std::size_t segment) {
  assign(outputs_[segment], values);
}

void CodecHarness::set_memory(const std::vector<float>& values, std::size_t segment) {
  assign(memories_[segment], values);
}

void CodecHarness::share_residuals() { shared_ = true; }

// Codecs without memory receive no memory spans.
std::span<const SegmentMemory> CodecHarness::memory_spans() {
  memory_spans_.clear();
  for (GuardedValues& memory : memories_)
    if (!memory.span().empty()) memory_spans_.push_back({memory.span(), memory.span()});
  return memory_spans_;
}

Execution CodecHarness::execution() {
  Execution execution;
  execution.threads = threads_.get();
  execution.workspace = workspace_->span();
  execution.round_state = round_state_->span();
  execution.memory = options_.memory;
  return execution;
}

EncodeCall CodecHarness::encode_call() {
  gradient_spans_.clear();
  for (GuardedValues& gradient : gradients_) gradient_spans_.push_back(gradient.span());
  states_.clear();
  for (std::size_t i = 0; has_states() && i < segments.size(); ++i)
    states_.push_back(
        {.residual_in = residuals_in_[i].span(),
         .residual_out = shared_ ? residuals_in_[i].span() : residuals_out_[i].span()});
  return {.segments = segments,
          .gradients = gradient_spans_,
          .states = states_,
          .memories = memory_spans(),
          .words = &words,
          .random = random,
          .identity = identity,
          .execution = execution(),
          .contributions = options_.contributions};
}

DecodeCall CodecHarness::decode_call(const std::vector<GuardedBytes>& frames) {
  frame_spans_.clear();
  for (const GuardedBytes& frame : frames) frame_spans_.push_back(frame.span());
  output_spans_.clear();
  for (GuardedValues& output : outputs_) output_spans_.push_back(output.span());
  return {.segments = segments,
          .frames = frame_spans_,
          .outputs = output_spans_,
          .memories = memory_spans(),
          .identity = identity,
          .execution = execution(),
          .window_first = {},
          .contributions = options_.contributions};
}

ReduceCall CodecHarness::reduce_call(const std::vector<GuardedBytes>& frames) {
  const EncodeCall encode = encode_call();
  decode_call(frames);
  return {.segments = segments,
          .dtype = options_.dtype,
          .frames = frame_spans_,
          .states = encode.states,
          .words = &words,
          .random = random,
          .identity = identity,
          .execution = execution()};
}

/// Returns a host frame without its unused capacity.
GuardedBytes without_rest(const GuardedBytes& frame) {
  EXPECT_TRUE(frame.intact());
  const std::size_t bytes =
      frame.memory() == Memory::kHost ? frame_bytes(frame.span()) : frame.span().size();
  GuardedBytes used(bytes, 0, frame.memory());
  std::memcpy(used.span().data(), frame.span().data(), bytes);
  return used;
}

GuardedBytes CodecHarness::encode() { return encode(encode_call()); }

GuardedBytes CodecHarness::encode(const EncodeCall& call) {
  GuardedBytes frame(plan().frame_bytes, 0, options_.memory);
  codec_.encode(call, frame.span());
  return without_rest(frame);
}

void CodecHarness::decode(const std::vector<GuardedBytes>& frames, DecodeMode mode, float factor) {
  DecodeCall call = decode_call(frames);
  call.mode = mode;
  call.factor = factor;
  codec_.decode(call);
}

GuardedBytes CodecHarness::reduce(const std::vector<GuardedBytes>& frames, float factor) {
  GuardedBytes frame(codec_.results().plan(request()).frame_bytes, 0, options_.memory);
  ReduceCall call = reduce_call(frames);
  call.factor = factor;
  codec_.reduce(call, frame.span());
  return without_rest(frame);
}

std::vector<float> CodecHarness::gradient(std::size_t segment) const {
  return gradients_[segment].floats();
}
std::vector<float> CodecHarness::residual_in(std::size_t segment) const {
  return residuals_in_[segment].floats();
}
std::vector<float> CodecHarness::residual_out(std::size_t segment) const {
  return (shared_ ? residuals_in_ : residuals_out_)[segment].floats();
}
std::vector<float> CodecHarness::output(std::size_t segment) const {
  return outputs_[segment].floats();
}

std::vector<float> CodecHarness::outputs() const { return joined(outputs_); }
std::vector<float> CodecHarness::residuals_out() const {
  return joined(shared_ ? residuals_in_ : residuals_out_);
}

std::vector<float> CodecHarness::all_memory() const { return joined(memories_); }

std::vector<float> CodecHarness::sent(std::size_t segment) const {
  std::vector<float> values = gradient(segment);
  const std::vector<float> residual = residual_in(segment);
  for (std::size_t i = 0; has_states() && i < values.size(); ++i)
    values[i] = with_feedback(words.gradient_factor, values[i], words.residual_factor, residual[i]);
  return values;
}

bool CodecHarness::intact() const {
  return all_intact(gradients_) && all_intact(residuals_in_) && all_intact(residuals_out_) &&
         all_intact(outputs_) && all_intact(memories_) && (!workspace_ || workspace_->intact()) &&
         (!round_state_ || round_state_->intact());
}

}  // namespace tersor::test
