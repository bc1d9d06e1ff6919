// Ranks as digits of a grid. A two-shot exchange runs dimension by dimension. In each dimension,
// ranks differing only in that digit reduce the results of the earlier dimensions. A rank then
// sends sum(p - 1) messages instead of product(p) - 1 in a single dimension.
#pragma once

#include "comm/collectives/parts.h"

#include <tersor/collectives.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tersor {

/// Contiguous shards.
struct ShardRange {
  std::size_t first = 0;
  std::size_t count = 0;

  bool operator==(const ShardRange&) const = default;
};

/// A rank's owned ranges of a parameter after each dimension of a grid; each contains the next.
struct OwnedRanges {
  static constexpr std::size_t kMaxStages = 3;
  std::array<Range, kMaxStages> stages = {};

  /// Total count of all stages.
  std::size_t count() const { return offset(kMaxStages); }
  /// Offset of a stage's values among all stages.
  std::size_t offset(std::size_t stage) const;
};

/// The divisors of a mean after each dimension of a grid; the last is 1.
using Divisors = std::array<float, OwnedRanges::kMaxStages + 1>;

/// Formats digits: "4 x 4".
std::string text_of(std::span<const int> digits);

/// A grid of group ranks 0 … n - 1. The first p1 · p2 · … ranks own a shard each. The first digit
/// of a rank varies fastest, so neighbours exchange the long messages of the first dimension. Ranks
/// beyond the product join a group of the first dimension: they send and receive, but own nothing.
class Grid {
 public:
  static constexpr int kMaxDimensions = static_cast<int>(OwnedRanges::kMaxStages);

  /// An empty grid, and a single dimension of all ranks.
  Grid() = default;
  explicit Grid(int group_size) : Grid({&group_size, 1}, group_size) {}
  /// Throws InvalidArgumentError for more than three digits, for a digit below 2 (in a single
  /// dimension: below 1), and for a product above the number of ranks or below 9/10 of the number.
  Grid(std::span<const int> digits, int group_size);
  /// A single dimension of the first `owners` ranks, for any number of other ranks.
  static Grid owned_by_first(int owners, int group_size);
  /// A grid of the given digits, by default the standard grid. Throws InvalidArgumentError if there
  /// are more dimensions than the error bound allows (see max_dimensions).
  static Grid of(std::span<const int> digits, int group_size,
                 double error_growth = kDefaultErrorGrowth);
  /// The fewest dimensions with digits up to 32, as equal as possible. If the error bound prevents
  /// this, uses the allowed dimensions with larger digits.
  static Grid standard(int group_size, double error_growth = kDefaultErrorGrowth);
  /// Possibly faster grids with any number of dimensions. Up to 32 ranks, only a single dimension.
  static std::vector<Grid> candidates(int group_size, double error_growth = kDefaultErrorGrowth);
  /// The largest number of dimensions d with (1 + d) / 2 within the bound. Throws
  /// InvalidArgumentError for a bound below 1.
  static int max_dimensions(double error_growth);

  int group_size() const { return group_size_; }
  int owners() const { return owners_; }
  int dimensions() const { return static_cast<int>(digits_.size()); }
  std::span<const int> digits() const { return digits_; }
  bool owns(int group_rank) const { return group_rank < owners_; }
  /// True if all ranks exchange with all ranks.
  bool is_direct() const { return dimensions() == 1 && owners_ == group_size_; }

  std::size_t max_shards_of_chunk() const {
    return dimensions() == 1 ? kShardsOfChunk
                             : shards_of_grid_chunk(static_cast<std::size_t>(owners_));
  }

  /// The ranks a rank exchanges with in a dimension, ascending, including itself. The first
  /// digits()[d] of them own values. Empty if the rank does not take part.
  std::vector<int> subgroup(int group_rank, int dimension) const;
  /// The shards whose sums a rank holds after `dimensions` dimensions: first all, finally its own.
  ShardRange shards_after(int group_rank, int dimensions) const;

  /// The divisors of a mean over `ranks` ranks, for values added on this grid. Each dimension
  /// divides by the largest number of addends, so no sum exceeds its largest addend. The last
  /// dimension divides by the remaining factor.
  Divisors divisors(float ranks) const;

  /// The part of a parameter in a shard. Digits rotate with the parameter's index.
  int part(std::size_t shard, std::uint32_t parameter) const;
  /// The values of a shard within `whole`, which begins at a multiple of the unit.
  Range range_of_shard(Range whole, std::size_t shard, std::uint32_t parameter,
                       std::size_t unit) const;
  /// The values a rank owns after each dimension.
  OwnedRanges owned(Range whole, int group_rank, std::uint32_t parameter, std::size_t unit) const;

 private:
  /// Product of the digits before a dimension.
  int stride(int dimension) const;
  /// Size of the largest group of a dimension.
  int largest_subgroup(int dimension) const;
  int digit(int group_rank, int dimension) const {
    return group_rank / stride(dimension) % digits_[d(dimension)];
  }
  static std::size_t d(int dimension) { return static_cast<std::size_t>(dimension); }

  std::vector<int> digits_ = {};
  int group_size_ = 0;
  int owners_ = 0;
};

}  // namespace tersor
