// See rules.h.
#include "comm/reducer/rules.h"

#include <fnmatch.h>

namespace tersor {
namespace {

constexpr std::size_t kSmallCount = 4096;  // values: below, a codec saves less than a message costs

bool is_vector(const RuleSubject& subject) { return subject.rows <= 1 || subject.columns <= 1; }

}  // namespace

Rules::Rules(const ReducerOptions& options) : options_(options) {
  if (options.rules.empty()) codec(options.codec);
  for (const ReducerRule& rule : options.rules) codec(rule.codec);
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
      return {codec(rule.codec), "rule \"" + rule.pattern + "\""};
  throw InvalidArgument("no rule matches parameter \"" + name +
                        "\"; add a last one of \"*\" and \"bf16\"");
}

RuleChoice Rules::by_default(const RuleSubject& subject) {
  const bool small = subject.count < kSmallCount;
  const auto for_all = codec(options_.codec);
  const bool lossless = for_all != nullptr && for_all->traits().lossless;
  if (lossless || (!small && !is_vector(subject))) return {for_all, "the codec for all"};
  const bool half = subject.dtype != Dtype::kF32;
  return {codec(half ? "none" : "bf16"), small ? "fewer than 4096 values" : "a 1-D parameter"};
}

}  // namespace tersor
