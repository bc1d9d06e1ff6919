// Encode, encode with feedback, decode, decode and add, reduce.

#include "bench/micro/codec_operations.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "bench/common/compare.h"
#include "bench/micro/useful_bytes.h"
#include "codecs/loss.h"

namespace tersor::bench {
namespace {

/// The maximum rounding error of a sum in the gradient's type, relative to the values.
double rounding_of(Dtype dtype) { return dtype == Dtype::kF32 ? 1e-6 : 1e-2; }

/// Plans a codec on the machine and, for the expected result, on the host.
class PlannedOperation : public CodecOperation {
 protected:
  PlannedOperation(const OperationInput& input, const std::string& spec,
                   std::size_t contributions = 1)
      : CodecOperation(input),
        host_codec_(spec, input.plan_on_host(contributions)),
        codec_(spec, input.plan_on_machine(contributions)) {
    payload_bytes_ = codec_.plan().frame_bytes - sizeof(FrameHeader);
    workspace_bytes_ = codec_.plan().workspace_bytes;
  }

  /// The maximum error of a frame's values.
  double error_limit() const { return codec_.codec().traits().lossless ? 0.0 : 1.0; }
  void require_sum(std::span<const double> sum, ConstValueSpan values,
                   std::string_view what) const {
    require_within(relative_error(sum, values), rounding_of(gradient().dtype()), what);
  }

  PlannedCodec host_codec_, codec_;
};

class EncodeOperation : public PlannedOperation {
 public:
  explicit EncodeOperation(const OperationInput& input)
      : PlannedOperation(input, input.codec),
        sets_(sets_for({.access = Access::kRead,
                        .bytes = encode_bytes(gradient().bytes(), payload_bytes_),
                        .input = {gradient().pointer(), gradient().bytes()},
                        .written = payload_bytes_})),
        gradients_(input, sets_, Steps::kOnDevices),
        frames_(rotated(sets_, codec_.plan().frame_bytes)) {}

  double check() override {
    run();
    const Buffer frame = on_host(frames_), expected = host_codec_.frame();
    host_codec_.encode(gradient(), expected.span());
    require_same(used_bytes(expected), frame, "encode: the frame");
    payload_bytes_ = tersor::payload_bytes(frame);
    const Buffer values = decoded(host_codec_, frame);
    const double error = relative_error(gradient(), as_gradient(values));
    require_within(error, error_limit(), "encode then decode");
    return error;
  }

  void call(std::size_t call) override { codec_.encode(gradients_.at(call), frames_.at(call)); }

 private:
  std::size_t sets_;
  Gradients gradients_;
  RotatedBuffer frames_;
};

/// The destination of residuals: in place or elsewhere. Elsewhere keeps every step as hard as the
/// first step.
enum class Residuals : std::uint8_t { kInPlace, kOutOfPlace };

class FeedbackOperation : public PlannedOperation {
 public:
  FeedbackOperation(const OperationInput& input, Residuals residuals)
      : PlannedOperation(input, with_feedback(input.codec, Feedback::kResidual)),
        sets_(sets_for(
            {.access = Access::kUpdate,
             .bytes = feedback_bytes(gradient().bytes(), residual_bytes(), payload_bytes_)})),
        gradients_(input, sets_, Steps::kAll),
        states_(input, sets_),
        frames_(rotated(sets_, codec_.plan().frame_bytes)) {
    if (residuals == Residuals::kOutOfPlace) written_ = rotated(sets_, residual_bytes());
  }

  double check() override {
    run();
    const Buffer frame = on_host(frames_), expected = host_codec_.frame();
    HostState state = states_.on_host();
    host_codec_.encode(gradient(), expected.span(), state.state(), &state.words);
    require_same(used_bytes(expected), frame, "encode: the frame");
    payload_bytes_ = tersor::payload_bytes(frame);
    require_same(state.residual.span(), on_host(written()), "encode: the residual");
    if (states_.starts_at_zero()) check_same_payload(frame);
    const Buffer values = decoded(host_codec_, frame);
    const double error = feedback_error(gradient(), states_.initial(), as_gradient(values));
    require_within(error, 1.0, "encode with feedback, then decode");
    check_conservation(as_gradient(values), state.values());
    return error;
  }

  void call(std::size_t call) override {
    codec_.encode(
        gradients_.at(call), frames_.at(call),
        SegmentState{states_.residual(call), written().values(call, input_.count, Dtype::kF32)},
        states_.words());
  }

 private:
  const RotatedBuffer& written() const { return written_ ? *written_ : states_.residuals(); }

  /// If the residual is zero, feedback changes no byte.
  void check_same_payload(const Buffer& frame) const {
    const PlannedCodec plain(input_.codec, input_.plan_on_host());
    const Buffer expected = plain.frame();
    plain.encode(gradient(), expected.span());
    const auto payload = [](const Buffer& whole) {
      return used_bytes(whole).subspan(sizeof(FrameHeader));
    };
    if (!same_bits(payload(expected), payload(frame)))
      throw Error("encode with feedback: the payload is not that of encode without");
  }

  /// Sent values plus new residual equal gradient plus old residual.
  void check_conservation(ConstValueSpan sent, ConstValueSpan selected) const {
    std::vector<double> sum(input_.count);
    add_values(1.0, sent, sum);
    add_values(1.0, selected, sum);
    add_values(-1.0, states_.initial(), sum);
    require_sum(sum, gradient(), "decoded + residual against gradient");
  }

  std::size_t sets_;
  Gradients gradients_;
  ResidualStates states_;
  RotatedBuffer frames_;
  std::optional<RotatedBuffer> written_;
};

/// Residuals are written elsewhere, because in-place residuals would spread the values over many
/// magnitudes.
std::unique_ptr<CodecOperation> make_far_miss(const OperationInput& request) {
  OperationInput input = request;
  const std::size_t count = input.gradient.count();
  const Dtype dtype = input.gradient.dtype();
  input.source = std::make_shared<SampleSource>("narrow");
  input.storage = std::make_shared<Buffer>(sample_buffer(*input.source, count, dtype, 1));
  input.gradient = input.storage->values(count, dtype);
  return std::make_unique<FeedbackOperation>(input, Residuals::kOutOfPlace);
}

class DecodeOperation : public PlannedOperation {
 public:
  DecodeOperation(const OperationInput& input, DecodeMode mode)
      : PlannedOperation(input, input.codec),
        mode_(mode),
        frame_(host_codec_.frame()),
        values_(decoded_frame()),
        sets_(sets_for(work())),
        frames_(sets_, used_bytes(frame_), *input.machine),
        outputs_(sets_, copy_of_gradient().span(), *input.machine) {}

  double check() override {
    const double error = relative_error(gradient(), as_gradient(values_));
    require_within(error, error_limit(), "decode");
    run();
    const Buffer output = on_host(outputs_), expected = copy_of_gradient();
    host_codec_.decode(used_bytes(frame_), as_gradient(expected), mode_);
    require_same(expected.span(), output, "decode: the values");
    if (mode_ == DecodeMode::kAdd) check_sum(as_gradient(output));
    return error;
  }

  /// Every second call subtracts the values that the set's previous call added.
  void call(std::size_t call) override {
    const bool subtracts = mode_ == DecodeMode::kAdd && call / sets_ % 2 != 0;
    codec_.decode(frames_.at(call), outputs_.values(call, input_.count, input_.gradient.dtype()),
                  mode_, subtracts ? -1.0f : 1.0f);
  }

 private:
  Buffer decoded_frame() {
    host_codec_.encode(gradient(), frame_.span());
    payload_bytes_ = tersor::payload_bytes(frame_);
    return decoded(host_codec_, frame_);
  }

  MemoryWork work() const {
    if (mode_ == DecodeMode::kAssign)
      return {.access = Access::kWrite, .bytes = decode_bytes(values_.bytes(), payload_bytes_)};
    const std::size_t touched = touched_bytes(values_.span(), input_.machine->traits().line_bytes);
    return {.access = Access::kUpdate, .bytes = decode_add_bytes(touched, payload_bytes_)};
  }

  void check_sum(ConstValueSpan output) const {
    std::vector<double> sum(input_.count);
    add_values(1.0, gradient(), sum);
    add_values(1.0, as_gradient(values_), sum);
    require_sum(sum, output, "decode and add");
  }

  DecodeMode mode_;
  Buffer frame_, values_;
  std::size_t sets_;
  RotatedBuffer frames_, outputs_;
};

/// Reduces frames of several ranks. Each rank has the same values in another order.
class ReduceOperation : public PlannedOperation {
 public:
  explicit ReduceOperation(const OperationInput& input)
      : PlannedOperation(input, with_feedback(input.codec, Feedback::kResidual),
                         input.machine->traits().reduced_frames),
        encoder_(input.codec, input.plan_on_host()),
        ranks_(input.machine->traits().reduced_frames),
        sets_(sets_for({.access = Access::kUpdate,
                        .bytes = reduce_bytes(ranks_, residual_bytes(), payload_bytes_)})),
        states_(input, sets_),
        reduced_(rotated(sets_, codec_.plan().frame_bytes)),
        frames_(sets_) {
    for (std::size_t rank = 0; rank < ranks_; ++rank) encode_rank(rank);
  }

  double check() override {
    run();
    const Buffer reduced = on_host(reduced_), expected = host_codec_.frame();
    HostState state = states_.on_host();
    std::vector<ConstByteSpan> frames;
    for (const Buffer& frame : host_frames_) frames.push_back(used_bytes(frame));
    host_codec_.reduce(frames, expected.span(), state.state(), &state.words);
    require_same(used_bytes(expected), reduced, "reduce: the frame");
    payload_bytes_ = tersor::payload_bytes(reduced);
    require_same(state.residual.span(), on_host(states_.residuals()),
                 "reduce: the owner's residual");
    return check_sum(decoded(encoder_, reduced), state.values());
  }

  void call(std::size_t call) override {
    codec_.reduce(frames_[rotated_index(call, sets_)], reduced_.at(call),
                  in_place(states_.residual(call)), states_.words());
  }

 private:
  /// The gradient, rotated by the rank's share of the count.
  Buffer of_rank(std::size_t rank) const {
    Buffer rotated(gradient().bytes());
    const ConstByteSpan bytes{gradient().pointer(), gradient().bytes()};
    const std::size_t cut = input_.count * rank / ranks_ * dtype_bytes(gradient().dtype());
    std::ranges::rotate_copy(bytes, bytes.begin() + static_cast<std::ptrdiff_t>(cut),
                             rotated.pointer());
    return rotated;
  }

  void encode_rank(std::size_t rank) {
    const Buffer& frame = host_frames_.emplace_back(encoder_.frame());
    encoder_.encode(as_gradient(of_rank(rank)), frame.span());
    const RotatedBuffer& copies = copies_.emplace_back(sets_, used_bytes(frame), *input_.machine);
    for (std::size_t set = 0; set < sets_; ++set) frames_[set].push_back(copies.at(set));
  }

  /// The reduced frame plus the new residual equal the frames plus the owner's old residual. The
  /// error is relative to this sum or, after an empty residual, to the sum of the gradients.
  double check_sum(const Buffer& reduced, ConstValueSpan residual) const {
    std::vector<double> sum(input_.count);
    for (const Buffer& frame : host_frames_)
      add_values(1.0, as_gradient(decoded(encoder_, frame)), sum);
    add_values(1.0, states_.initial(), sum);
    const double error =
        relative_error(states_.starts_at_zero() ? sum_of_gradients() : sum, as_gradient(reduced));
    add_values(-1.0, residual, sum);
    require_sum(sum, as_gradient(reduced), "reduce");
    return error;
  }

  std::vector<double> sum_of_gradients() const {
    std::vector<double> sum(input_.count);
    for (std::size_t rank = 0; rank < ranks_; ++rank)
      add_values(1.0, as_gradient(of_rank(rank)), sum);
    return sum;
  }

  PlannedCodec encoder_;
  std::size_t ranks_, sets_;
  ResidualStates states_;
  RotatedBuffer reduced_;
  std::vector<Buffer> host_frames_;
  std::vector<RotatedBuffer> copies_;
  std::vector<std::vector<ConstByteSpan>> frames_;  // by set
};

/// Plans a codec without frames for several ranks, and a matrix codec for the widest matrix of
/// `count` values.
PlanInput for_raw_rounds(PlanInput plan_input, const std::string& spec) {
  plan_input.contributions = kNominalRanks;
  if (!make_codec(spec)->traits().needs_shape) return plan_input;
  plan_input.rows = static_cast<std::size_t>(std::sqrt(static_cast<double>(plan_input.count)));
  while (plan_input.count % plan_input.rows != 0) --plan_input.rows;
  plan_input.columns = plan_input.count / plan_input.rows;
  return plan_input;
}

/// Encode and decode of all rounds, with the values of a single rank.
class RawRoundsOperation : public CodecOperation {
 public:
  explicit RawRoundsOperation(const OperationInput& input)
      : CodecOperation(input),
        codec_(input.codec, for_raw_rounds(input.plan_on_host(), input.codec)),
        output_(gradient().bytes()) {
    workspace_bytes_ = codec_.plan().workspace_bytes;
    work_ = {.access = Access::kWrite, .bytes = gradient().bytes() + output_.bytes()};
  }

  double check() override {
    run();
    const double error = relative_error(gradient(), as_gradient(output_));
    require_within(error, 1.0, "all rounds of raw values");
    return error;
  }

  void call(std::size_t) override {
    payload_bytes_ = codec_.exchange_raw(gradient(), as_gradient(output_));
  }

 private:
  PlannedCodec codec_;
  Buffer output_;
};

/// True if a codec supports residuals.
bool accepts_feedback(const std::string& spec, const PlanInput& plan_input) {
  try {
    PlannedCodec(with_feedback(spec, Feedback::kResidual), plan_input);
    return true;
  } catch (const InvalidArgumentError&) {
    return false;
  }
}

template <typename Operation, auto... kArguments>
std::unique_ptr<CodecOperation> make(const OperationInput& input) {
  return std::make_unique<Operation>(input, kArguments...);
}

constexpr auto kAlways = [](const PlannedCodec&, bool) { return true; };

/// A far miss: top-k finds no threshold by sampling, and only digits determine the k-th value.
constexpr OperationKind kFrameOperations[] = {
    {"encode", kAlways, make<EncodeOperation>},
    {"encode_feedback", [](const PlannedCodec&, bool feedback) { return feedback; },
     make<FeedbackOperation, Residuals::kInPlace>},
    {"encode_feedback_far_miss",
     [](const PlannedCodec& codec, bool) { return has_far_miss(codec); }, make_far_miss},
    {"decode", kAlways, make<DecodeOperation, DecodeMode::kAssign>},
    {"decode_add", kAlways, make<DecodeOperation, DecodeMode::kAdd>},
    {"reduce", [](const PlannedCodec& codec, bool feedback) { return feedback && codec.reduces(); },
     make<ReduceOperation>}};

}  // namespace

const OperationKind kRawRounds{
    .name = "raw_rounds", .make = make<RawRoundsOperation>, .checksum = false};

std::span<const OperationKind> frame_operations() { return kFrameOperations; }

std::vector<const OperationKind*> operations_of(const Machine& machine, const std::string& spec,
                                                std::size_t count, Dtype dtype) {
  const PlanInput plan_input{.count = count, .dtype = dtype};
  if (make_codec(spec)->traits().needs_shape || !PlannedCodec(spec, plan_input).has_frames())
    return machine.on_device() ? std::vector<const OperationKind*>() : std::vector{&kRawRounds};
  const PlannedCodec codec(spec, plan_input);
  const bool feedback = accepts_feedback(spec, plan_input);
  std::vector<const OperationKind*> found;
  for (const std::span<const OperationKind> kinds :
       {frame_operations(), std::span(machine.traits().operations)})
    for (const OperationKind& kind : kinds)
      if (kind.has != nullptr && kind.has(codec, feedback)) found.push_back(&kind);
  return found;
}

std::unique_ptr<CodecOperation> make_encode(const OperationInput& input) {
  return make<EncodeOperation>(input);
}

}  // namespace tersor::bench
