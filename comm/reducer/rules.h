// Which codec a parameter travels by, and why.
#pragma once

#include <tersor/codec.h>
#include <tersor/reducer.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace tersor {

/// What the rules are applied to.
struct RuleSubject {
  std::string_view name;
  std::size_t count = 0;
  std::size_t rows = 0;
  std::size_t columns = 0;
  Dtype dtype = Dtype::kF32;
};

/// A codec that counts from a step on, and the one that the rule asks for.
struct RulePhase {
  std::uint32_t from_step;
  std::shared_ptr<const Codec> codec;
  std::shared_ptr<const Codec> asked;
};

struct RuleChoice {
  enum class Why { kForAll, kRule, kSmall, kVector, kOneHost };

  std::shared_ptr<const Codec> codec;  ///< at first; null: "auto", a Tuner chooses
  Why why;
  std::string pattern = {};            ///< of kRule
  std::vector<RulePhase> phases = {};  ///< of a schedule, from step 0; else empty
  std::vector<std::shared_ptr<const Codec>> refused = {};  ///< which do not carry its shape

  bool automatic() const { return codec == nullptr; }
  bool may_change() const { return automatic() || !phases.empty(); }
  /// What chose: `rule "*.weight"`.
  std::string chooser() const;
  /// The chooser, and all that follows from it.
  std::string text() const;
};

/// Applies a reducer's rules; parameters of one spec share one codec.
class Rules {
 public:
  /// Throws InvalidArgument for a spec or a schedule that is wrong, before any parameter is added.
  explicit Rules(const ReducerOptions& options);

  /// bf16 instead of a codec that does not carry such a shape. Throws InvalidArgument where no rule
  /// matches.
  RuleChoice choose(const RuleSubject& subject);

  /// Equal specs give one codec; null for "auto".
  std::shared_ptr<const Codec> codec(const std::string& spec);

 private:
  RuleChoice by_default(const RuleSubject& subject);
  RuleChoice by_pattern(const std::string& pattern);
  RuleChoice fitting(RuleChoice choice, const RuleSubject& subject);
  std::vector<RulePhase> schedule(const std::string& pattern);

  const ReducerOptions& options_;
  std::map<std::string, std::shared_ptr<const Codec>> codecs_;
};

}  // namespace tersor
