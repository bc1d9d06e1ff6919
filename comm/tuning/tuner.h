// Implementation of a Tuner: figures equal on all ranks, and a Learner per kind of gradient.
#pragma once

#include "comm/tuning/learner.h"
#include "comm/tuning/model.h"

#include <tersor/auto.h>

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace tersor {

struct Tuner::Impl {
  struct Gradient {
    Dtype dtype;
    std::size_t count;
    Collective collective = Collective::kAllreduce;
    std::vector<int> dims = {};  ///< of two-shot, if decided
    auto operator<=>(const Gradient&) const = default;
  };

  Impl(Transport& transport, AutoOptions requested);

  /// The alternatives to measure and the Learner choosing among them.
  struct Trials {
    std::vector<AutoPrediction> candidates;
    Learner learner;
    std::uint64_t used = 0;  ///< number of the last call

    const AutoChoice& current() const { return candidates[learner.candidate(0)].choice; }
  };

  Trials& trials(Dtype dtype, std::size_t count);
  void record(Dtype dtype, std::size_t count, double seconds);
  std::vector<AutoPrediction> predict_each(const Gradient& gradient);
  std::string explain() const;

  bool on_device() const { return options_.memory == Memory::kDevice; }
  bool adds_on_host() const;
  void find_machines();
  void measure_network();
  LinkFigures probe(const std::vector<int>& members);
  void measure_costs(Dtype dtype);
  std::vector<AutoPrediction> alternatives(const Gradient& gradient);
  CostFigures figures_of(const std::string& spec, Dtype dtype) const;
  void add_alternatives(const std::string& spec, const CostQuery& query,
                        std::vector<AutoPrediction>& all);
  void add_scatter(const std::string& spec, CostQuery query, std::vector<AutoPrediction>& all);
  void add_hierarchical(const std::string& spec, CostQuery query, const CostFigures& figures,
                        std::vector<AutoPrediction>& all);
  std::vector<std::string> candidates(Dtype dtype) const;
  const std::vector<AutoPrediction>& predicted(const Gradient& gradient);

  AutoOptions options_;
  std::unique_ptr<Transport> channel_;
  /// True on the machine's lowest rank, which measures for all ranks of the machine.
  bool measures_ = true;
  double crowding_ = 1;
  double add_seconds_per_byte_ = 0;
  Network network_;
  std::map<std::pair<std::string, Dtype>, CodecCosts> costs_;  ///< agreed on by all ranks
  std::map<Gradient, Trials> trials_;  ///< recently used sizes, equal on all ranks
  std::uint64_t calls_ = 0;
  std::map<Gradient, std::vector<AutoPrediction>> predicted_;  ///< cache of `predict`
};

}  // namespace tersor
