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

std::string RuleChoice::chooser() const {
  switch (why) {
    case Why::kForAll:
      return "the codec for all";
    case Why::kRule:
      return "rule \"" + pattern + "\"";
    case Why::kSmall:
      return "fewer than " + std::to_string(kSmallCount) + " values";
    case Why::kVector:
      return "a 1-D parameter";
    case Why::kOneHost:
      return "all ranks share a host";
  }
  return "";
}

std::string RuleChoice::text() const {
  std::string text = chooser();
  for (const RulePhase& phase : phases)
    if (phase.from_step != 0)
      text +=
          ", from step " + std::to_string(phase.from_step) + " on " + phase.asked->spec().text();
  for (const auto& codec : refused) text += ", but the shape does not fit " + codec->spec().text();
  return automatic() ? text + ", auto" : text;
}

Rules::Rules(const ReducerOptions& options) : options_(options) {
  if (options.rules.empty()) codec(options.codec);
  for (const ReducerRule& rule : options.rules) codec(rule.codec);
  for (const ReducerRule& rule : options.rules) schedule(rule.pattern);
}

std::shared_ptr<const Codec> Rules::codec(const std::string& spec) {
  if (spec == kAutoCodec) return nullptr;
  std::shared_ptr<const Codec>& known = codecs_[spec];
  if (known == nullptr) known = make_codec(spec);
  return known;
}

RuleChoice Rules::choose(const RuleSubject& subject) {
  if (options_.rules.empty()) return by_default(subject);
  const std::string name(subject.name);
  for (const ReducerRule& rule : options_.rules)
    if (fnmatch(rule.pattern.c_str(), name.c_str(), 0) == 0)
      return fitting(by_pattern(rule.pattern), subject);
  throw InvalidArgumentError("no rule matches parameter \"" + name +
                             "\": add a last rule with pattern \"*\", e.g. with codec \"bf16\"");
}

std::vector<RulePhase> Rules::schedule(const std::string& pattern) {
  std::vector<ReducerRule> rules;
  std::ranges::copy_if(options_.rules, std::back_inserter(rules),
                       [&](const ReducerRule& rule) { return rule.pattern == pattern; });
  rules = by_step(std::move(rules));
  check_schedule(rules);
  const bool owes = rules.size() > 1 && std::ranges::any_of(rules, [&](const ReducerRule& rule) {
                      return codec(rule.codec)->has_feedback();
                    });
  std::vector<RulePhase> phases;
  for (const ReducerRule& rule : rules) {
    const auto asked = codec(owes ? with_feedback(rule.codec, Feedback::kResidual) : rule.codec);
    phases.push_back({rule.from_step, asked, asked});
  }
  return phases;
}

RuleChoice Rules::by_pattern(const std::string& pattern) {
  std::vector<RulePhase> phases = schedule(pattern);
  RuleChoice choice{
      .codec = phases.front().codec, .why = RuleChoice::Why::kRule, .pattern = pattern};
  if (phases.size() > 1) choice.phases = std::move(phases);
  return choice;
}

RuleChoice Rules::fitting(RuleChoice choice, const RuleSubject& subject) {
  const Segment segment{.count = subject.count, .rows = subject.rows, .columns = subject.columns};
  const auto fit = [&](std::shared_ptr<const Codec>& codec) {
    if (codec == nullptr || codec->carries(segment)) return;
    if (std::ranges::find(choice.refused, codec) == choice.refused.end())
      choice.refused.push_back(codec);
    const std::string half = subject.dtype == Dtype::kF32 ? "bf16" : "none";
    codec = this->codec(codec->has_feedback() && !choice.phases.empty()
                            ? with_feedback(half, Feedback::kResidual)
                            : half);
  };
  for (RulePhase& phase : choice.phases) fit(phase.codec);
  fit(choice.codec);
  if (!choice.phases.empty()) choice.codec = choice.phases.front().codec;
  return choice;
}

RuleChoice Rules::by_default(const RuleSubject& subject) {
  const bool small = subject.count < kSmallCount;
  const auto for_all = codec(options_.codec);
  const bool lossless = for_all != nullptr && for_all->traits().lossless;
  if (lossless || (!small && !is_vector(subject)))
    return fitting({for_all, RuleChoice::Why::kForAll}, subject);
  const bool half = subject.dtype != Dtype::kF32;
  return {codec(half ? "none" : "bf16"),
          small ? RuleChoice::Why::kSmall : RuleChoice::Why::kVector};
}

}  // namespace tersor
