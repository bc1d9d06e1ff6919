// Ranks numbered by digits. A two-shot exchange goes dimension by dimension: in each, those that
// differ in that digit alone reduce among them what the dimensions before left them, so that one
// rank sends sum(p - 1) messages where it would be product(p) - 1 in one dimension.
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

/// Lanes that lie one behind the other.
struct LaneRange {
  std::size_t first = 0;
  std::size_t count = 0;

  bool operator==(const LaneRange&) const = default;
};

/// What one rank owns of a parameter after each dimension of a grid; each within the one before.
struct OwnedRanges {
  static constexpr std::size_t kMostStages = 3;
  std::array<Range, kMostStages> stages = {};

  /// Of all of them, one behind the other.
  std::size_t count() const { return offset(kMostStages); }
  /// Where the values of a stage lie among them.
  std::size_t offset(std::size_t stage) const;
};

/// What a mean is divided by after each dimension of a grid; and by 1 when all was added.
using Shares = std::array<float, OwnedRanges::kMostStages + 1>;

/// "4 x 4".
std::string text_of(std::span<const int> digits);

/// Places 0 … n - 1, of which the first p1 · p2 · … own a lane each. The first digit of a place
/// varies fastest, so that neighbours exchange the long messages of the first dimension. Places
/// beyond the product join a group of the first dimension, where they send and get, but own
/// nothing.
class Grid {
 public:
  static constexpr int kMostDimensions = static_cast<int>(OwnedRanges::kMostStages);

  /// Nobody; and one dimension of all places.
  Grid() = default;
  explicit Grid(int places) : Grid({&places, 1}, places) {}
  /// Throws InvalidArgument for more than three digits, one below 2 (below 1 where there is only
  /// one), or a product that is above the number of places or below 9/10 of it.
  Grid(std::span<const int> digits, int places);
  /// Of the first `owners` places, in one dimension, whatever the number of the others.
  static Grid owned_by_first(int owners, int places);
  /// Of these digits; the standard one where there are none. Throws InvalidArgument where they have
  /// more dimensions than the bound allows (see below).
  static Grid of(std::span<const int> digits, int places,
                 double error_growth = kDefaultErrorGrowth);
  /// The fewest dimensions whose digits are at most 32, as equal as they can be; of the most that
  /// the bound allows, longer ones.
  static Grid standard(int places, double error_growth = kDefaultErrorGrowth);
  /// Those of any number of dimensions that may be quicker: up to 32 places only one.
  static std::vector<Grid> worth_trying(int places, double error_growth = kDefaultErrorGrowth);
  /// The most dimensions d of which (1 + d) / 2 is within the bound. Throws InvalidArgument for a
  /// bound below 1.
  static int most_dimensions(double error_growth);

  int places() const { return places_; }
  int owners() const { return owners_; }
  int dimensions() const { return static_cast<int>(digits_.size()); }
  std::span<const int> digits() const { return digits_; }
  bool owns(int place) const { return place < owners_; }
  /// Everybody exchanges with everybody.
  bool is_direct() const { return dimensions() == 1 && owners_ == places_; }

  std::size_t most_lanes_of_chunk() const {
    return dimensions() == 1 ? kLanesOfChunk
                             : lanes_of_grid_chunk(static_cast<std::size_t>(owners_));
  }

  /// With whom a place exchanges in a dimension, ascending, itself among them; the first
  /// digits()[d] of them own something. Nobody where the place has no part in it.
  std::vector<int> group(int place, int dimension) const;
  /// The lanes that a place holds the sums of after so many dimensions: all, at last its own.
  LaneRange lanes_after(int place, int dimensions) const;

  /// Of a mean of `ranks`, whose values these places add: in each dimension by as many as are added
  /// there, at most, so that no sum is larger than what is added; in the last by what is left.
  Shares shares(float ranks) const;

  /// Which part of a parameter a lane is: digits rotate with the parameter's index.
  int part(std::size_t lane, std::uint32_t parameter) const;
  /// The values of a lane, of those in `whole`, which begins at a multiple of the unit.
  Range lane_range(Range whole, std::size_t lane, std::uint32_t parameter, std::size_t unit) const;
  /// The values that a place owns after each dimension.
  OwnedRanges owned(Range whole, int place, std::uint32_t parameter, std::size_t unit) const;

 private:
  /// Of dimensions before d.
  int stride(int dimension) const;
  /// Members of the largest group of a dimension.
  int largest_group(int dimension) const;
  int digit(int place, int dimension) const {
    return place / stride(dimension) % digits_[d(dimension)];
  }
  static std::size_t d(int dimension) { return static_cast<std::size_t>(dimension); }

  std::vector<int> digits_ = {};
  int places_ = 0;
  int owners_ = 0;
};

}  // namespace tersor
