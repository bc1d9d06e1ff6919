// A greedy allocation on lower convex hulls: takes the steps of all hulls, cheapest first, until
// the budget is met. The remaining bytes go to the most effective upgrades.
#include <tersor/allocate.h>
#include <tersor/error.h>

#include <algorithm>
#include <cmath>
#include <optional>

namespace tersor {
namespace {

/// Replaces the candidate of a parameter.
struct Upgrade {
  std::size_t parameter, to;
  double price;  ///< additional squared error per saved byte
};

/// The rule pattern for exactly this name.
std::string literal_pattern(const std::string& name) {
  std::string pattern;
  for (const char c : name) {
    if (std::string_view("\\*?[").find(c) != std::string_view::npos) pattern += '\\';
    pattern += c;
  }
  return pattern;
}

double price(const AllocationCandidate& from, const AllocationCandidate& to) {
  return (to.energy_lost - from.energy_lost) /
         (static_cast<double>(from.bytes) - static_cast<double>(to.bytes));
}

/// The allowed candidates by increasing error, then by increasing size.
std::vector<std::size_t> by_energy(const AllocationParameter& parameter) {
  const auto& all = parameter.candidates;
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < all.size(); ++i)
    if (std::isfinite(all[i].energy_lost)) order.push_back(i);
  std::ranges::stable_sort(
      order, {}, [&](std::size_t i) { return std::pair(all[i].energy_lost, all[i].bytes); });
  if (order.empty())
    throw InvalidArgumentError(
        "parameter \"" + parameter.name +
        "\" has no candidate codec: add a codec that supports its shape, e.g. none");
  return order;
}

/// The corners of the lower convex hull, from the smallest error to the fewest bytes.
std::vector<std::size_t> hull(const AllocationParameter& parameter) {
  const auto& all = parameter.candidates;
  std::vector<std::size_t> corners;
  for (const std::size_t next : by_energy(parameter)) {
    if (!corners.empty() && all[next].bytes >= all[corners.back()].bytes) continue;
    while (corners.size() > 1 && price(all[corners[corners.size() - 2]], all[corners.back()]) >=
                                     price(all[corners.back()], all[next]))
      corners.pop_back();
    corners.push_back(next);
  }
  return corners;
}

class Allocator {
 public:
  explicit Allocator(std::span<const AllocationParameter> parameters) : parameters_(parameters) {
    for (std::size_t i = 0; i < parameters.size(); ++i) add_parameter(i, hull(parameters[i]));
    std::ranges::stable_sort(steps_, {}, &Upgrade::price);
  }

  Allocation run(double bits) {
    if (result_.count == 0)
      throw InvalidArgumentError("the parameters have no values: give parameters with gradients");
    const double budget = std::round(bits * static_cast<double>(result_.count) / 8);
    for (const Upgrade& step : steps_)
      if (!fits(budget)) apply(step);
    if (!fits(budget)) reject_budget(bits);
    while (const std::optional<Upgrade> step = best_upgrade(budget)) apply(*step);
    write_rules();
    return std::move(result_);
  }

 private:
  void add_parameter(std::size_t i, const std::vector<std::size_t>& corners) {
    const AllocationCandidate& first = parameters_[i].candidates[corners.front()];
    result_.chosen.push_back(corners.front());
    result_.count += parameters_[i].count;
    result_.energy += parameters_[i].energy;
    result_.bytes += first.bytes;
    for (std::size_t k = 1; k < corners.size(); ++k)
      steps_.push_back({i, corners[k],
                        price(parameters_[i].candidates[corners[k - 1]],
                              parameters_[i].candidates[corners[k]])});
  }

  const AllocationCandidate& chosen(std::size_t i) const {
    return parameters_[i].candidates[result_.chosen[i]];
  }

  // False for a NaN budget.
  bool fits(double budget) const { return static_cast<double>(result_.bytes) <= budget; }

  void apply(const Upgrade& step) {
    result_.bytes -= chosen(step.parameter).bytes;
    result_.chosen[step.parameter] = step.to;
    result_.bytes += chosen(step.parameter).bytes;
  }

  /// The upgrade with the largest error reduction per byte. Only candidates with a smaller error
  /// than now count.
  std::optional<Upgrade> best_upgrade(double budget) const {
    std::optional<Upgrade> best;
    const double left = budget - static_cast<double>(result_.bytes);
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      for (std::size_t k = 0; k < parameters_[i].candidates.size(); ++k) {
        const AllocationCandidate &now = chosen(i), &other = parameters_[i].candidates[k];
        if (!(other.energy_lost < now.energy_lost)) continue;
        if (static_cast<double>(other.bytes) - static_cast<double>(now.bytes) > left) continue;
        const double gain = other.bytes <= now.bytes ? INFINITY : price(other, now);
        if (!best || gain > best->price) best = Upgrade{i, k, gain};
      }
    return best;
  }

  [[noreturn]] void reject_budget(double bits) const {
    throw InvalidArgumentError("bits is " + std::to_string(bits) + " per value: give at least " +
                               std::to_string(std::ceil(result_.bits() * 1e6) / 1e6) +
                               ", or add codecs that send less");
  }

  void write_rules() {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      result_.energy_lost += chosen(i).energy_lost;
      result_.rules.push_back({literal_pattern(parameters_[i].name), chosen(i).codec});
    }
    result_.rules.push_back({"*", "bf16"});
  }

  std::span<const AllocationParameter> parameters_;
  std::vector<Upgrade> steps_;
  Allocation result_;
};

}  // namespace

double Allocation::bits() const {
  return 8 * static_cast<double>(bytes) / static_cast<double>(count);
}

Allocation allocate(std::span<const AllocationParameter> parameters, double bits) {
  return Allocator(parameters).run(bits);
}

}  // namespace tersor
