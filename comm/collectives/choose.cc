#include "comm/collectives/choose.h"

#include <algorithm>
#include <iterator>

namespace tersor {
namespace {

// Names in the order of the enumerators.
constexpr std::string_view kAlgorithms[] = {"auto", "native", "two-shot", "one-shot",
                                            "hierarchical"};

Exchange exchange_of(Algorithm algorithm) {
  if (algorithm == Algorithm::kNative) return Exchange::kNativeSum;
  return algorithm == Algorithm::kTwoShot ? Exchange::kTwoShot : Exchange::kGather;
}

bool allows(const Plan& plan, Algorithm algorithm) {
  if (algorithm == Algorithm::kHierarchical) return true;
  const auto& exchanges = plan.rounds.back().exchanges;
  return std::find(exchanges.begin(), exchanges.end(), exchange_of(algorithm)) != exchanges.end();
}

// If a codec needs a shape, plans an arbitrary suitable shape, because the algorithms do not depend
// on the shape.
Plan plan_of(const ChoiceRequest& request) {
  constexpr std::size_t kSide = 1024;
  Segment segment{.count = request.count};
  if (request.any_shape && request.codec->traits().needs_shape)
    segment = {.count = kSide * kSide, .rows = kSide, .columns = kSide};
  return request.codec->plan({.segments = {&segment, 1},
                              .dtype = request.dtype,
                              .contributions = static_cast<std::size_t>(request.ranks)});
}

[[noreturn]] void throw_unsupported(const Codec& codec, const Plan& plan, Algorithm requested) {
  std::string supported;
  for (std::size_t i = 1; i < std::size(kAlgorithms); ++i)  // all but auto
    if (allows(plan, static_cast<Algorithm>(i)))
      supported += (supported.empty() ? "" : ", ") + std::string(kAlgorithms[i]);
  throw InvalidArgumentError("codec " + codec.spec().text() + " does not support algorithm " +
                             std::string(algorithm_name(requested)) + ": choose " + supported);
}

// Raw values wider than frames are used only on request.
bool prefers_native(const Plan& plan) {
  return plan.rounds.back().exchanges.front() == Exchange::kNativeSum;
}

Algorithm automatic(const Plan& plan, const ChoiceRequest& request) {
  const bool sums_f32 = request.single_gradient && prefers_native(plan) &&
                        plan.rounds.back().native_dtype == Dtype::kF32;
  const bool small = plan.frame_bytes <= kOneShotBytes && !sums_f32;
  if (small && allows(plan, Algorithm::kOneShot)) return Algorithm::kOneShot;
  if (prefers_native(plan)) return Algorithm::kNative;
  const bool two_shot = request.ranks > 2 && allows(plan, Algorithm::kTwoShot);
  return two_shot ? Algorithm::kTwoShot : Algorithm::kOneShot;
}

}  // namespace

std::string_view algorithm_name(Algorithm algorithm) {
  return kAlgorithms[static_cast<std::size_t>(algorithm)];
}

std::string order_mark(std::uint32_t parameter) {
  std::string mark = order_mark();
  for (int i = 0; i < 4; ++i, parameter >>= 8) mark.push_back(static_cast<char>(parameter & 0xff));
  return mark;
}

std::vector<std::string> algorithm_names() {
  return {std::begin(kAlgorithms), std::end(kAlgorithms)};
}

std::vector<std::string> dtype_names() {
  std::vector<std::string> names;
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16, Dtype::kF16})
    names.emplace_back(dtype_name(dtype));
  return names;
}

Algorithm parse_algorithm(std::string_view name) {
  const auto found = std::ranges::find(kAlgorithms, name);
  if (found != std::end(kAlgorithms)) return static_cast<Algorithm>(found - kAlgorithms);
  throw InvalidArgumentError("algorithm is \"" + std::string(name) +
                             "\": give auto, native, two-shot, one-shot or hierarchical");
}

Algorithm choose_algorithm(const ChoiceRequest& request) {
  const Plan plan = plan_of(request);
  if (request.requested == Algorithm::kAuto || request.requested == Algorithm::kHierarchical)
    return automatic(plan, request);
  if (!allows(plan, request.requested)) throw_unsupported(*request.codec, plan, request.requested);
  return request.requested;
}

std::vector<Exchange> exchanges_of(const Codec& codec, Dtype dtype, int ranks,
                                   Algorithm algorithm) {
  std::vector<Exchange> exchanges;
  const Plan plan =
      plan_of({.codec = &codec, .dtype = dtype, .count = kUnit, .ranks = ranks, .any_shape = true});
  for (const Round& round : plan.rounds) exchanges.push_back(round.exchanges.front());
  exchanges.back() = exchange_of(algorithm);
  return exchanges;
}

Algorithm choose_reduce_scatter(const Codec& codec, Dtype dtype, std::string_view operation) {
  if (!supports(codec, dtype, Algorithm::kOneShot) && !supports(codec, dtype, Algorithm::kTwoShot))
    throw InvalidArgumentError("codec " + codec.spec().text() +
                               " supports only allreduce: choose another codec for " +
                               std::string(operation));
  return codec.traits().sent_divisible ? Algorithm::kTwoShot : Algorithm::kOneShot;
}

Plan plan_local(const Codec& codec, std::span<const Segment> segments, std::string_view caller) {
  Plan plan;
  if (!codec.traits().needs_shape) plan = codec.plan({.segments = segments});
  if (plan.rounds.size() != 1 || !allows(plan, Algorithm::kOneShot))
    throw InvalidArgumentError(
        std::string(caller) + ": codec \"" + codec.spec().text() +
        "\" needs an exchange of all ranks: choose a codec whose frames one rank "
        "encodes alone, e.g. int8");
  return plan;
}

bool adds_in_place(const Codec& codec, Dtype dtype) {
  const Plan plan = plan_of({.codec = &codec, .dtype = dtype, .count = kUnit, .any_shape = true});
  return codec.traits().lossless && plan.rounds.back().native_dtype == dtype;
}

bool supports(const Codec& codec, Dtype dtype, Algorithm algorithm) {
  return allows(plan_of({.codec = &codec, .dtype = dtype, .count = kUnit, .any_shape = true}),
                algorithm);
}

}  // namespace tersor
