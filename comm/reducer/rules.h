// Which codec a parameter travels by, and why.
#pragma once

#include <tersor/codec.h>
#include <tersor/reducer.h>

#include <cstddef>
#include <map>
#include <memory>
#include <string>

namespace tersor {

/// What the rules are applied to.
struct RuleSubject {
  std::string_view name;
  std::size_t count = 0;
  std::size_t rows = 0;
  std::size_t columns = 0;
  Dtype dtype = Dtype::kF32;
};

struct RuleChoice {
  std::shared_ptr<const Codec> codec;  ///< null: "auto", a Tuner chooses
  std::string reason;
};

/// Applies a reducer's rules; parameters of one spec share one codec.
class Rules {
 public:
  /// Throws InvalidArgument for a spec that is wrong, before any parameter is added.
  explicit Rules(const ReducerOptions& options);

  /// Throws InvalidArgument where no rule matches.
  RuleChoice choose(const RuleSubject& subject);

  /// Equal specs give one codec; null for "auto".
  std::shared_ptr<const Codec> codec(const std::string& spec);

 private:
  RuleChoice by_default(const RuleSubject& subject);

  const ReducerOptions& options_;
  std::map<std::string, std::shared_ptr<const Codec>> codecs_;
};

}  // namespace tersor
