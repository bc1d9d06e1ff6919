#include "codecs/result_codec.h"

#include "codecs/calls.h"
#include "codecs/checks.h"
#include "codecs/frame_codec.h"
#include "kernels/device/marks.h"

#include <tersor/align.h>
#include <tersor/error.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

namespace tersor::encoding {
namespace {

/// The lists of a reduction. One per thread, so a call allocates nothing after the first.
struct ReductionLists {
  std::vector<Segment> segments;
  std::vector<ValueSpan> sums;
  std::vector<ConstValueSpan> read_sums;
};

std::size_t sum_bytes(const Segment& segment, Dtype dtype) {
  return align_up(segment.count * dtype_bytes(dtype), kWorkspaceAlignment);
}

/// The start of the workspace: the sums, and two copies of the state words.
constexpr std::size_t kWordsBytes = align_up(2 * sizeof(StateWords), kWorkspaceAlignment);

std::size_t own_workspace(std::span<const Segment> segments, Dtype dtype) {
  std::size_t bytes = kWordsBytes;
  for (const Segment& segment : segments) bytes += sum_bytes(segment, dtype);
  return bytes;
}

class ResultCodec final : public FrameCodec {
 public:
  ResultCodec(CodecSpec spec, std::shared_ptr<const Codec> first,
              std::shared_ptr<const Codec> result)
      : FrameCodec(std::move(spec), first->id()),
        first_(std::move(first)),
        result_(std::move(result)),
        stateless_(without_feedback(*result_)) {}

  CodecTraits traits() const override {
    CodecTraits traits = first_->traits();
    traits.sent_divisible = traits.divisible;
    traits.divisible &= result_->traits().divisible;
    traits.lossless = false;  // the sums differ from the values
    traits.unit = std::max(traits.unit, result_->traits().unit);
    return traits;
  }
  const Codec& results() const override { return *result_; }
  bool carries(const Segment& segment) const override {
    return first_->carries(segment) && result_->carries(segment);
  }

 protected:
  PlanSizes plan_sizes(const PlanRequest& request) const override {
    PlanSizes sizes = sizes_of(*first_, request);
    sizes.workspace_bytes =
        own_workspace(request.segments, request.dtype) +
        std::max(sizes.workspace_bytes, sizes_of(*result_, request).workspace_bytes);
    return sizes;
  }
  std::vector<Round> plan_rounds(const PlanRequest&) const override {
    return {{.exchanges = {Exchange::kTwoShot, Exchange::kGather}}};
  }

  void do_encode(const EncodeCall& call, ByteSpan frame) const override {
    first_->encode(call, frame);
  }
  void do_decode(const DecodeCall& call) const override { first_->decode(call); }
  void do_reduce(const ReduceCall& call, ByteSpan frame) const override;

 private:
  static std::shared_ptr<const Codec> without_feedback(const Codec& codec) {
    CodecSpec spec = codec.spec();
    spec.feedback = Feedback::kNone;
    return make_codec(spec.text());
  }

  const std::shared_ptr<const Codec> first_, result_;
  const std::shared_ptr<const Codec> stateless_;  ///< for calls without states
};

/// Lists the sums in the workspace. The flags of inactive parameters concern only senders.
void list_sums(const ReduceCall& call, Memory memory, ReductionLists& lists) {
  lists.segments.assign(call.segments.begin(), call.segments.end());
  lists.sums.clear();
  std::byte* at = call.execution.workspace.data() + kWordsBytes;
  for (Segment& segment : lists.segments) {
    segment.active = nullptr;
    lists.sums.emplace_back(at, segment.count, call.dtype, memory);
    at += sum_bytes(segment, call.dtype);
  }
  lists.read_sums.assign(lists.sums.begin(), lists.sums.end());
}

/// Copies state words, with the gradient's factor of `gradient`; null: 1.
void copy_words(const StateWords* from, const StateWords* gradient, StateWords* to,
                const ReduceCall& call, Memory memory) {
  if (memory == Memory::kDevice)
    return kernels::copy_words(from, gradient, to, call.execution.stream);
  const float factor = gradient == nullptr ? 1.0f : gradient->gradient_factor;
  *to = *from;
  to->gradient_factor = factor;
}

// Frames are added in f32. The sum is rounded to the gradient's dtype, because both codecs write
// and read frames of this dtype. The gradient's factor does not apply to a sum.
void ResultCodec::do_reduce(const ReduceCall& call, ByteSpan frame) const {
  thread_local ReductionLists lists;
  const Memory memory = memory_of(call);
  list_sums(call, memory, lists);
  Execution execution = call.execution;
  execution.workspace = execution.workspace.subspan(own_workspace(call.segments, call.dtype));
  first_->decode({.segments = lists.segments,
                  .frames = call.frames,
                  .outputs = lists.sums,
                  .factor = call.factor,
                  .identity = call.identity,
                  .execution = execution});
  auto* const words = reinterpret_cast<StateWords*>(call.execution.workspace.data());
  StateWords* const next = call.words_out == nullptr ? nullptr : words + 1;
  if (call.words != nullptr) copy_words(call.words, nullptr, words, call, memory);
  const Codec& owner = call.states.empty() ? *stateless_ : *result_;
  owner.encode({.segments = lists.segments,
                .gradients = lists.read_sums,
                .states = call.states,
                .words = call.words == nullptr ? nullptr : words,
                .words_out = next,
                .random = call.random,
                .identity = call.identity,
                .execution = execution},
               frame);
  if (next != nullptr) copy_words(next, call.words, call.words_out, call, memory);
}

/// Throws InvalidArgumentError unless an owner can add frames of the codec.
void check_reducible(const Codec& codec, const CodecSpec& whole) {
  const Segment segment{.count = CodecTraits{}.unit};
  if (!codec.traits().needs_shape) {
    const Plan plan = codec.plan({.segments = {&segment, 1}});
    if (plan.rounds.size() == 1 &&
        std::ranges::count(plan.rounds.front().exchanges, Exchange::kTwoShot) != 0)
      return;
  }
  throw InvalidArgumentError("codec " + whole.text() + ": " + codec.spec().name +
                             " has no frames that an owner adds: give codecs for two-shot before "
                             "and after result=, e.g. int8, hadamard or blocktopk");
}

}  // namespace

std::shared_ptr<const Codec> make_result_codec(const CodecSpec& spec) {
  CodecSpec first = spec;
  const auto option =
      std::ranges::find(first.options, kResultOption, &std::pair<std::string, std::string>::first);
  CodecSpec result = parse_spec(option->second);
  if (!result.options.empty() && result.options.back().first == kResultOption)
    throw InvalidArgumentError("codec " + spec.text() + ": give result= once");
  result.feedback = spec.feedback;
  first.options.erase(option);
  auto sender = make_codec(first.text()), owner = make_codec(result.text());
  for (const auto& codec : {sender, owner}) check_reducible(*codec, spec);
  CodecSpec canonical = sender->spec(), nested = owner->spec();
  nested.feedback = Feedback::kNone;
  canonical.options.emplace_back(kResultOption, nested.text());
  return std::make_shared<ResultCodec>(std::move(canonical), std::move(sender), std::move(owner));
}

}  // namespace tersor::encoding
