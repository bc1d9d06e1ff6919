// Results of a sound run, computed without the library in double precision.
#include <algorithm>
#include <string_view>
#include <utility>

#include "tests/faults/caller.h"

namespace tersor::faults {
namespace {

/// SplitMix64 (Steele et al. 2014).
std::uint64_t mixed(std::uint64_t state) {
  state = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9u;
  state = (state ^ (state >> 27)) * 0x94d049bb133111ebu;
  return state ^ (state >> 31);
}

std::size_t input_count(const Scenario& scenario, const Step& step, int rank) {
  const auto ranks = static_cast<std::size_t>(scenario.ranks);
  if (step.work == Work::kReducerStep) return scenario.trainer.count();
  if (!step.rows.empty()) return step.count * rows_before(step, rank, scenario.ranks);
  const bool for_each_rank = step.work == Work::kReduceScatter || step.work == Work::kScatter ||
                             step.work == Work::kExchange;
  return for_each_rank ? step.count * ranks : step.count;
}

bool is_mean(const Step& step) {
  const bool reduces = step.work == Work::kAllreduce || step.work == Work::kReduceScatter ||
                       step.work == Work::kReduce;
  return step.work == Work::kReducerStep || (reduces && step.reduction == Reduction::kMean);
}

std::vector<Values> all_inputs(const Scenario& scenario, std::size_t step) {
  std::vector<Values> inputs;
  for (int rank = 0; rank < scenario.ranks; ++rank)
    inputs.push_back(input_of(scenario, step, rank));
  return inputs;
}

std::vector<double> reduced(const std::vector<Values>& inputs, const Step& step) {
  std::vector<double> result(inputs.front().begin(), inputs.front().end());
  for (std::size_t rank = 1; rank < inputs.size(); ++rank)
    for (std::size_t i = 0; i < result.size(); ++i) {
      const double value = inputs[rank][i];
      result[i] = step.work == Work::kMaximum ? std::max(result[i], value) : result[i] + value;
    }
  for (double& value : result)
    if (is_mean(step)) value /= static_cast<double>(inputs.size());
  return result;
}

std::vector<double> gathered(const std::vector<Values>& inputs, std::size_t first,
                             std::size_t count) {
  std::vector<double> result;
  for (const Values& input : inputs) {
    const auto begin = input.begin() + static_cast<std::ptrdiff_t>(first);
    result.insert(result.end(), begin, begin + static_cast<std::ptrdiff_t>(count));
  }
  return result;
}

/// The rows from all ranks for one rank.
std::vector<double> dealt(const std::vector<Values>& inputs, const Step& step, int rank) {
  std::vector<double> result;
  for (int from = 0; from < static_cast<int>(inputs.size()); ++from) {
    const auto begin = inputs[static_cast<std::size_t>(from)].begin();
    const auto at = [&](int to) {
      return begin + static_cast<std::ptrdiff_t>(step.count * rows_before(step, from, to));
    };
    result.insert(result.end(), at(rank), at(rank + 1));
  }
  return result;
}

/// Shard r of the concatenated values.
std::vector<double> shard_of(const std::vector<double>& all, std::size_t rank, std::size_t count) {
  const auto begin = all.begin() + static_cast<std::ptrdiff_t>(rank * count);
  return {begin, begin + static_cast<std::ptrdiff_t>(count)};
}

/// The error is unevenly distributed over blocks with fewer values.
constexpr std::size_t kHadamardBlock = 256;

/// A generous bound on |error|² / |values|² after encoding uniformly distributed values once.
double unit_error(std::string_view codec) {
  constexpr std::pair<std::string_view, double> kErrors[] = {
      {"none", 1e-12}, {"bf16", 1e-4},   {"f16", 1e-4},     {"int8", 1e-3},
      {"int4", 5e-2},  {"intsum", 1e-1}, {"hadamard", 5e-1}};
  for (const auto& [name, error] : kErrors)
    if (codec.starts_with(name)) return error;
  return 1.01;  // may lose nearly everything, like topk except for the largest values
}

}  // namespace

Values input_of(const Scenario& scenario, std::size_t step, int rank) {
  Values values(input_count(scenario, scenario.steps[step], rank));
  const std::uint64_t start =
      mixed(scenario.seed * 1000 + step * 10 + static_cast<std::uint64_t>(rank));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint64_t bits = mixed(start + i * 0x9e3779b97f4a7c15u) >> 40;  // 24 bits
    values[i] = static_cast<float>(bits) * 0x1p-23f - 1.0f;
  }
  return values;
}

std::vector<double> exact_result(const Scenario& scenario, std::size_t index, int rank) {
  const Step& step = scenario.steps[index];
  const auto inputs = all_inputs(scenario, index);
  const auto own = static_cast<std::size_t>(rank);
  const Values& of_root = inputs[static_cast<std::size_t>(step.root)];
  const bool to_root = step.work == Work::kReduce || step.work == Work::kGather;
  if (to_root && rank != step.root) return {};
  switch (step.work) {
    case Work::kAllgather:
    case Work::kGather:
    case Work::kAllGather:
      return gathered(inputs, 0, step.count);
    case Work::kBroadcast:
      return {of_root.begin(), of_root.end()};
    case Work::kAllToAll:
    case Work::kSend:
      return dealt(inputs, step, rank);
    case Work::kScatter:
      return shard_of({of_root.begin(), of_root.end()}, own, step.count);
    case Work::kExchange:
      return gathered(inputs, own * step.count, step.count);
    case Work::kPass: {
      const Values& before = inputs[(own + inputs.size() - 1) % inputs.size()];
      return {before.begin(), before.end()};
    }
    case Work::kReduceScatter:
      return shard_of(reduced(inputs, step), own, step.count);
    default:
      return reduced(inputs, step);
  }
}

// The errors of the ranks' frames add up, and feedback adds residuals of earlier steps.
double error_bound(const Scenario& scenario, std::size_t index) {
  const Step& step = scenario.steps[index];
  const bool trains = step.work == Work::kReducerStep;
  const std::string_view codec = trains ? scenario.trainer.codec : step.codec;
  double unit = unit_error(codec);
  if (codec.starts_with("hadamard") && step.count < kHadamardBlock) unit *= 8;
  if (trains || step.dtype != Dtype::kF32) unit = std::max(unit, unit_error("bf16"));
  double energy = 0;
  for (const Values& input : all_inputs(scenario, index))
    for (const double value : input) energy += value * value;
  if (is_mean(step)) energy /= scenario.ranks * scenario.ranks;
  const auto before = static_cast<double>(codec.ends_with("+ef") ? index + 1 : 1);
  return unit * scenario.ranks * energy * before * before;
}

}  // namespace tersor::faults
