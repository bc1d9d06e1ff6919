#include "comm/reducer/rules.h"

#include "codecs/planned_codec.h"

#include <fnmatch.h>

#include <algorithm>

namespace tersor {
namespace {

// In values. Below this count, a message costs more time than a codec saves.
constexpr std::size_t kSmallCount = 4096;

/// If several rules start at the same step, the first rule applies.
std::vector<ReducerRule> by_step(std::vector<ReducerRule> rules) {
  std::ranges::stable_sort(rules, {}, &ReducerRule::from_step);
  const auto equal = [](const ReducerRule& a, const ReducerRule& b) {
    return a.from_step == b.from_step;
  };
  rules.erase(std::unique(rules.begin(), rules.end(), equal), rules.end());
  return rules;
}

void check_schedule(const std::vector<ReducerRule>& phases) {
  const ReducerRule& first = phases.front();
  if (first.from_step != 0)
    throw InvalidArgumentError("rule \"" + first.pattern + "\" begins with step " +
                               std::to_string(first.from_step) +
                               ": add a rule with the same pattern for the earlier steps");
  if (phases.size() > 1 && std::ranges::count(phases, kAutoCodec, &ReducerRule::codec) != 0)
    throw InvalidArgumentError(
        "the schedule of \"" + first.pattern +
        "\" contains codec auto: name a codec for each step of the schedule");
}

bool is_vector(const RuleSubject& subject) { return subject.rows <= 1 || subject.columns <= 1; }

}  // namespace

std::string RuleChoice::reason_text() const {
  switch (reason) {
    case Reason::kDefault:
      return "the codec for all";
    case Reason::kRule:
      return "rule \"" + pattern + "\"";
    case Reason::kSmall:
      return "fewer than " + std::to_string(kSmallCount) + " values";
    case Reason::kVector:
      return "a 1-D parameter";
    case Reason::kOneHost:
      return "all ranks share a host";
  }
  return "";
}

std::string RuleChoice::text() const {
  std::string text = reason_text();
  for (const RulePhase& phase : phases)
    if (phase.from_step != 0)
      text += ", from step " + std::to_string(phase.from_step) + " on " +
              phase.requested->spec().text();
  for (const auto& codec : rejected) text += ", but the shape does not fit " + codec->spec().text();
  return automatic() ? text + ", auto" : text;
}

Rules::Rules(const ReducerOptions& options) : options_(options) {
  if (options.rules.empty()) codec(options.codec);
  for (const ReducerRule& rule : options.rules) codec(rule.codec);
  for (const ReducerRule& rule : options.rules) schedule(rule.pattern);
}

std::shared_ptr<const Codec> Rules::codec(const std::string& spec) {
  if (spec == kAutoCodec) return nullptr;
  std::shared_ptr<const Codec>& cached = codecs_[spec];
  if (cached == nullptr) cached = make_codec(spec);
  return cached;
}

RuleChoice Rules::choose(const RuleSubject& subject) {
  if (options_.rules.empty()) return by_default(subject);
  const std::string name(subject.name);
  for (const ReducerRule& rule : options_.rules)
    if (fnmatch(rule.pattern.c_str(), name.c_str(), 0) == 0)
      return with_supported_codecs(by_pattern(rule.pattern), subject);
  throw InvalidArgumentError("no rule matches parameter \"" + name +
                             "\": add a last rule with pattern \"*\", e.g. with codec \"bf16\"");
}

std::vector<RulePhase> Rules::schedule(const std::string& pattern) {
  std::vector<ReducerRule> rules;
  std::ranges::copy_if(options_.rules, std::back_inserter(rules),
                       [&](const ReducerRule& rule) { return rule.pattern == pattern; });
  rules = by_step(std::move(rules));
  check_schedule(rules);
  const bool ef = rules.size() > 1 && std::ranges::any_of(rules, [&](const ReducerRule& rule) {
                    return codec(rule.codec)->has_feedback();
                  });
  std::vector<RulePhase> phases;
  for (const ReducerRule& rule : rules) {
    const auto requested = codec(ef ? with_feedback(rule.codec, Feedback::kResidual) : rule.codec);
    phases.push_back({rule.from_step, requested, requested});
  }
  return phases;
}

RuleChoice Rules::by_pattern(const std::string& pattern) {
  std::vector<RulePhase> phases = schedule(pattern);
  RuleChoice choice{
      .codec = phases.front().codec, .reason = RuleChoice::Reason::kRule, .pattern = pattern};
  if (phases.size() > 1) choice.phases = std::move(phases);
  return choice;
}

RuleChoice Rules::with_supported_codecs(RuleChoice choice, const RuleSubject& subject) {
  const Segment segment{.count = subject.count, .rows = subject.rows, .columns = subject.columns};
  const auto substitute = [&](std::shared_ptr<const Codec>& codec) {
    if (codec == nullptr || codec->carries(segment)) return;
    if (std::ranges::find(choice.rejected, codec) == choice.rejected.end())
      choice.rejected.push_back(codec);
    const std::string fallback = subject.dtype == Dtype::kF32 ? "bf16" : "none";
    codec = this->codec(codec->has_feedback() && !choice.phases.empty()
                            ? with_feedback(fallback, Feedback::kResidual)
                            : fallback);
  };
  for (RulePhase& phase : choice.phases) substitute(phase.codec);
  substitute(choice.codec);
  if (!choice.phases.empty()) choice.codec = choice.phases.front().codec;
  return choice;
}

RuleChoice Rules::by_default(const RuleSubject& subject) {
  const bool small = subject.count < kSmallCount;
  const auto default_codec = codec(options_.codec);
  const bool lossless = default_codec != nullptr && default_codec->traits().lossless;
  if (lossless || (!small && !is_vector(subject)))
    return with_supported_codecs({default_codec, RuleChoice::Reason::kDefault}, subject);
  const bool fallback = subject.dtype != Dtype::kF32;
  return {codec(fallback ? "none" : "bf16"),
          small ? RuleChoice::Reason::kSmall : RuleChoice::Reason::kVector};
}

}  // namespace tersor
