// See buckets.h. A *rider* is a small or 1-D parameter without a residual. A rider uses any
// algorithm of its bucket. Other parameters share a bucket only with parameters of the same
// algorithm.
#include "comm/reducer/buckets.h"

#include <algorithm>
#include <optional>

namespace tersor {
namespace {

constexpr std::size_t kRiderCount = 4096;         // values of a rider of any shape
constexpr std::size_t kVectorRiderBytes = 65536;  // gradient bytes of a 1-D rider

std::size_t bytes_of(const ExchangeParameter& param) {
  return param.count * dtype_bytes(param.dtype);
}

bool is_small(const ExchangeParameter& param) {
  const bool vector = param.rows <= 1 || param.columns <= 1;
  return param.count < kRiderCount || (vector && bytes_of(param) <= kVectorRiderBytes);
}

bool is_rider(const ExchangeParameter& param) {
  return is_small(param) && !param.codec->has_feedback() &&
         supports(*param.codec, param.dtype, Algorithm::kTwoShot);
}

bool same_format(const ExchangeParameter& a, const ExchangeParameter& b) {
  return a.codec == b.codec && a.dtype == b.dtype;
}

/// A bucket while parameters are added.
class BucketBuilder {
 public:
  BucketBuilder(const Planner& planner, const BucketOptions& options)
      : planner_(&planner), options_(options) {}

  bool fits(std::uint32_t index) const {
    if (params_.empty()) return true;
    const ExchangeParameter& param = param_at(index);
    if (bytes_ + bytes_of(param) > options_.bucket_bytes) return false;
    if (!can_share(param_at(params_.front()), param)) return false;
    if (is_rider(param)) return algorithm_ != Algorithm::kNative || uniform_with(param);
    const Algorithm requested = algorithm_of(param);
    if (requested == Algorithm::kNative && !uniform_with(param)) return false;
    return !algorithm_.has_value() || *algorithm_ == requested;
  }

  void add(std::uint32_t index) {
    const ExchangeParameter& param = param_at(index);
    params_.push_back(index);
    bytes_ += bytes_of(param);
    if (!is_rider(param)) algorithm_ = algorithm_of(param);
  }

  Bucket close() const {
    Bucket bucket{
        .params = params_, .algorithm = algorithm_.value_or(algorithm_of_riders()), .chunks = {}};
    if (params_.size() == 1) {
      const std::size_t chosen = planner_->params()[params_.front()].chunk_count;
      bucket.chunks = planner_->cut(params_.front(), bucket.algorithm,
                                    chosen != 0 ? chosen : options_.chunk_count);
    } else {
      bucket.chunks.push_back(planner_->whole(params_, bucket.algorithm));
    }
    return bucket;
  }

 private:
  const ExchangeParameter& param_at(std::uint32_t index) const { return planner_->params()[index]; }

  // A gathered parameter decodes a window and has a separate bucket.
  bool can_share(const ExchangeParameter& a, const ExchangeParameter& b) const {
    return a.collective == b.collective && !planner_->gathers_whole(a) &&
           !planner_->gathers_whole(b);
  }

  Algorithm algorithm_of(const ExchangeParameter& param) const {
    return preferred_algorithm(param, planner_->encoding_ranks(param), options_.algorithm);
  }

  bool uniform_with(const ExchangeParameter& param) const {
    return std::all_of(params_.begin(), params_.end(),
                       [&](std::uint32_t other) { return same_format(param_at(other), param); });
  }

  // The algorithm of a bucket of riders only: one-shot if the bucket is small, otherwise the first
  // rider's algorithm.
  Algorithm algorithm_of_riders() const {
    const ExchangeParameter& first = param_at(params_.front());
    const Algorithm algorithm = algorithm_of(first);
    if (first.collective == Collective::kReduceScatter) return algorithm;
    if (options_.algorithm == Algorithm::kAuto && bytes_ <= kOneShotBytes)
      return Algorithm::kOneShot;
    if (algorithm != Algorithm::kNative || uniform_with(first)) return algorithm;
    return planner_->encoding_ranks(first) > 2 ? Algorithm::kTwoShot : Algorithm::kOneShot;
  }

  const Planner* planner_;
  BucketOptions options_;
  std::vector<std::uint32_t> params_;
  std::size_t bytes_ = 0;
  std::optional<Algorithm> algorithm_;  ///< algorithm of the first parameter other than a rider
};

}  // namespace

Algorithm preferred_algorithm(const ExchangeParameter& param, int ranks, Algorithm requested) {
  constexpr std::size_t kAnyLargeCount = std::size_t{1} << 28;
  if (param.collective == Collective::kReduceScatter)
    return choose_reduce_scatter(*param.codec, param.dtype, "reduce_scatter");
  const bool chosen = param.algorithm != Algorithm::kAuto;
  return choose_algorithm({.codec = param.codec.get(),
                           .dtype = param.dtype,
                           .count = kAnyLargeCount,
                           .ranks = ranks,
                           .requested = chosen ? param.algorithm : requested,
                           .any_shape = true});
}

std::vector<Bucket> make_buckets(const Planner& planner, std::span<const std::uint32_t> order,
                                 const BucketOptions& options) {
  std::vector<Bucket> buckets;
  BucketBuilder builder(planner, options);
  for (const std::uint32_t index : order) {
    if (!builder.fits(index)) {
      buckets.push_back(builder.close());
      builder = BucketBuilder(planner, options);
    }
    builder.add(index);
  }
  if (!order.empty()) buckets.push_back(builder.close());
  return buckets;
}

}  // namespace tersor
