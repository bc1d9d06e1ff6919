// Chooses the codec of a parameter and keeps the reason.
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

/// The properties of a parameter used by rules.
struct RuleSubject {
  std::string_view name;
  std::size_t count = 0;
  std::size_t rows = 0;
  std::size_t columns = 0;
  Dtype dtype = Dtype::kF32;
};

/// The codec from a step on, and the codec requested by the rule. They differ if the requested
/// codec does not support the parameter's shape.
struct RulePhase {
  std::uint32_t from_step;
  std::shared_ptr<const Codec> codec;
  std::shared_ptr<const Codec> requested;
};

struct RuleChoice {
  enum class Reason { kDefault, kRule, kSmall, kVector, kOneHost };

  std::shared_ptr<const Codec> codec;  ///< the first codec; null for "auto", if a Tuner chooses
  Reason reason;
  std::string pattern = {};            ///< for kRule
  std::vector<RulePhase> phases = {};  ///< the schedule from step 0 on; empty without a schedule
  /// codecs without support for the parameter's shape
  std::vector<std::shared_ptr<const Codec>> rejected = {};

  bool automatic() const { return codec == nullptr; }
  bool may_change() const { return automatic() || !phases.empty(); }
  /// Returns the reason of the choice, e.g. `rule "*.weight"`.
  std::string reason_text() const;
  /// Returns the chooser() and all consequences.
  std::string text() const;
};

/// Applies a reducer's rules. Parameters with equal specs share a codec.
class Rules {
 public:
  /// Throws InvalidArgumentError for an invalid spec or schedule, before any parameter is added.
  explicit Rules(const ReducerOptions& options);

  /// Chooses bf16 if the requested codec does not support the shape. Throws InvalidArgumentError if
  /// no rule matches.
  RuleChoice choose(const RuleSubject& subject);

  /// Returns the same codec for equal specs; null for "auto".
  std::shared_ptr<const Codec> codec(const std::string& spec);

 private:
  RuleChoice by_default(const RuleSubject& subject);
  RuleChoice by_pattern(const std::string& pattern);
  RuleChoice with_supported_codecs(RuleChoice choice, const RuleSubject& subject);
  std::vector<RulePhase> schedule(const std::string& pattern);

  const ReducerOptions& options_;
  std::map<std::string, std::shared_ptr<const Codec>> codecs_;
};

}  // namespace tersor
