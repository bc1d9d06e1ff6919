#include "comm/collectives/grid.h"

#include <tersor/error.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

namespace tersor {
namespace {

constexpr int kMaxDigit = 32;          // messages of a rank in a dimension
constexpr double kMinOwners = 0.9;     // of all ranks
constexpr int kChunkInMessages = 512;  // messages per chunk time, at 6 Gbit/s and 3 us per message

double product(std::span<const int> digits) {
  return std::accumulate(digits.begin(), digits.end(), 1.0, std::multiplies<>());
}

bool fits(std::span<const int> digits, int group_size) {
  const double owners = product(digits);
  return owners <= group_size && owners >= kMinOwners * group_size;
}

void check_digits(std::span<const int> digits, int group_size) {
  const std::string grid = "dims are " + text_of(digits);
  if (digits.empty() || digits.size() > OwnedRanges::kMaxStages)
    throw InvalidArgumentError("dims has " + std::to_string(digits.size()) +
                               " dimensions: give 1 to " + std::to_string(OwnedRanges::kMaxStages));
  const int min_digit = digits.size() == 1 ? 1 : 2;
  for (const int digit : digits)
    if (digit < min_digit || digit > group_size)
      throw InvalidArgumentError(grid + ": give dimensions from " + std::to_string(min_digit) +
                                 " to the number of ranks, " + std::to_string(group_size) +
                                 ", not " + std::to_string(digit));
  if (fits(digits, group_size)) return;
  throw InvalidArgumentError(grid + ": give dimensions with a product of at most " +
                             std::to_string(group_size) +
                             ", the number of ranks, and at least 9/10 of it");
}

/// The number of a rank's messages, plus the cost of sending results to group members without a
/// shard. Each of these members receives 1 / width of a chunk from an owner.
double cost(std::span<const int> digits, int group_size) {
  const double width = std::ranges::max(digits), groups = product(digits) / width;
  const double extras = std::ceil((group_size - product(digits)) / groups);
  return std::accumulate(digits.begin(), digits.end(), 0.0) + kChunkInMessages * extras / width;
}

/// The digits with the least effort, descending. Empty if none fit.
std::vector<int> balanced_digits(int group_size, int dimensions, int max_digit) {
  if (dimensions == 1) return {std::min(group_size, max_digit)};
  std::vector<int> best;
  for (int width = 2; width <= std::min(group_size / 2, max_digit); ++width) {
    std::vector<int> digits = balanced_digits(group_size / width, dimensions - 1, max_digit);
    digits.push_back(width);
    if (fits(digits, group_size) &&
        (best.empty() || cost(digits, group_size) < cost(best, group_size)))
      best = std::move(digits);
  }
  std::ranges::sort(best, std::greater<>());
  return best;
}

}  // namespace

std::string text_of(std::span<const int> digits) {
  std::string text;
  for (const int digit : digits) text += (text.empty() ? "" : " x ") + std::to_string(digit);
  return text;
}

std::size_t OwnedRanges::offset(std::size_t stage) const {
  std::size_t before = 0;
  for (std::size_t i = 0; i < stage; ++i) before += stages[i].count;
  return before;
}

Grid::Grid(std::span<const int> digits, int group_size)
    : digits_(digits.begin(), digits.end()),
      group_size_(group_size),
      owners_(static_cast<int>(std::min<double>(product(digits), group_size))) {
  check_digits(digits, group_size);
}

Grid Grid::owned_by_first(int owners, int group_size) {
  Grid grid(owners);
  grid.group_size_ = group_size;
  return grid;
}

Grid Grid::of(std::span<const int> digits, int group_size, double error_growth) {
  if (digits.empty()) return standard(group_size, error_growth);
  Grid grid(digits, group_size);
  if (grid.dimensions() <= max_dimensions(error_growth)) return grid;
  throw InvalidArgumentError(
      "dims are " + text_of(digits) + ", with " + std::to_string(1 + grid.dimensions()) +
      " quantisations instead of the 2 of one dimension: give fewer dimensions, "
      "or an error_growth above " +
      std::to_string(error_growth));
}

Grid Grid::standard(int group_size, double error_growth) {
  const int max_dims = max_dimensions(error_growth);
  for (int dimensions = 1; dimensions <= max_dims; ++dimensions) {
    const std::vector<int> digits = balanced_digits(group_size, dimensions, kMaxDigit);
    if (!digits.empty() && fits(digits, group_size)) return {digits, group_size};
  }
  return {balanced_digits(group_size, max_dims, group_size), group_size};
}

std::vector<Grid> Grid::candidates(int group_size, double error_growth) {
  const int max_dims = group_size <= kMaxDigit ? 1 : max_dimensions(error_growth);
  std::vector<Grid> grids;
  for (int dimensions = 1; dimensions <= max_dims; ++dimensions)
    grids.emplace_back(balanced_digits(group_size, dimensions, group_size), group_size);
  return grids;
}

int Grid::max_dimensions(double error_growth) {
  if (!(error_growth >= 1))
    throw InvalidArgumentError("error_growth is " + std::to_string(error_growth) +
                               ": give at least 1, the growth of one dimension");
  return static_cast<int>(std::min(2 * error_growth - 1, double{kMaxDimensions}));
}

int Grid::stride(int dimension) const {
  return static_cast<int>(product(std::span(digits_).first(d(dimension))));
}

std::vector<int> Grid::subgroup(int group_rank, int dimension) const {
  std::vector<int> members;
  if (!owns(group_rank) && dimension > 0) return members;
  const int width = digits_[d(dimension)], step = stride(dimension);
  const int groups = owners_ / width;
  const int first = owns(group_rank) ? group_rank - digit(group_rank, dimension) * step
                                     : (group_rank - owners_) % groups * width;
  for (int i = 0; i < width; ++i) members.push_back(first + i * step);
  if (dimension == 0)
    for (int extra = owners_ + first / width; extra < group_size_; extra += groups)
      members.push_back(extra);
  return members;
}

ShardRange Grid::shards_after(int group_rank, int dimensions) const {
  ShardRange shards{0, static_cast<std::size_t>(owners_)};
  for (int i = 0; i < dimensions; ++i) {
    shards.count /= d(digits_[d(i)]);
    shards.first += d(digit(group_rank, i)) * shards.count;
  }
  return shards;
}

// Ranks without a shard join the groups of the first dimension in turn.
int Grid::largest_subgroup(int dimension) const {
  const int width = digits_[d(dimension)];
  if (dimension != 0) return width;
  const int groups = owners_ / width;
  return (group_size_ + groups - 1) / groups;
}

Divisors Grid::divisors(float ranks) const {
  Divisors divisors;
  divisors.fill(1.0f);
  const int last = dimensions() - 1;
  for (int i = 0; i < last; ++i) {
    divisors[d(i)] = static_cast<float>(largest_subgroup(i));
    ranks /= divisors[d(i)];
  }
  divisors[d(last)] = ranks;
  return divisors;
}

int Grid::part(std::size_t shard, std::uint32_t parameter) const {
  int part = 0, rest = owners_, left = static_cast<int>(shard);
  auto shift = static_cast<int>(parameter % static_cast<std::uint32_t>(owners_));
  for (const int width : digits_) {
    rest /= width;
    const int rotated = left / rest - shift % width;
    part += (rotated + width) % width * rest;
    left %= rest;
    shift /= width;
  }
  return part;
}

Range Grid::range_of_shard(Range whole, std::size_t shard, std::uint32_t parameter,
                           std::size_t unit) const {
  const Range range = part_range(whole.count, part(shard, parameter), owners_, unit);
  return {whole.first + range.first, range.count};
}

OwnedRanges Grid::owned(Range whole, int group_rank, std::uint32_t parameter,
                        std::size_t unit) const {
  OwnedRanges owned;
  for (int i = 0; owns(group_rank) && i < dimensions(); ++i) {
    const ShardRange shards = shards_after(group_rank, i + 1);
    const auto parts = static_cast<int>(shards.count);
    const int first = part(shards.first, parameter) / parts * parts;
    const Range begin = part_range(whole.count, first, owners_, unit);
    const Range end = part_range(whole.count, first + parts - 1, owners_, unit);
    owned.stages[d(i)] = {whole.first + begin.first, end.first + end.count - begin.first};
  }
  return owned;
}

}  // namespace tersor
