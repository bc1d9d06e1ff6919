// Measures codecs on gradient samples for <tersor/allocate.h>.
#include "codecs/loss.h"

#include <tersor/allocate.h>
#include <tersor/error.h>

#include <algorithm>
#include <cmath>

namespace tersor {

std::vector<std::string> allocation_codecs() {
  return {"none",
          "bf16",
          "int8",
          "hadamard:bits=4+ef",
          "hadamard:bits=3+ef",
          "hadamard:bits=2+ef",
          "hadamard:bits=1+ef",
          "blocktopk:density=0.1+ef",
          "blocktopk:density=0.03+ef",
          "blocktopk:density=0.01+ef",
          "lowrank:rank=8,values=bf16+ef",
          "lowrank:rank=4,values=bf16+ef",
          "lowrank:rank=2,values=bf16+ef",
          "lowrank:rank=1,values=bf16+ef"};
}

AllocationParameter measure_candidates(const AllocationGradient& sample,
                                       std::span<const std::string> codecs, Threads* threads) {
  const PlanInput plan_input{.count = sample.gradient.count(),
                             .dtype = sample.gradient.dtype(),
                             .threads = threads,
                             .rows = sample.rows,
                             .columns = sample.columns};
  const Segment segment{.count = plan_input.count, .rows = sample.rows, .columns = sample.columns};
  AllocationParameter measured{.name = sample.name, .count = plan_input.count};
  for (const std::string& spec : codecs) {
    const auto codec = make_codec(spec);
    if (!codec->carries(segment)) continue;
    const CodecLoss loss = measure_loss(plan_without_feedback(spec, plan_input), sample.gradient);
    if (!std::isfinite(loss.energy))
      throw InvalidArgumentError("the gradient of \"" + sample.name +
                                 "\" contains a NaN or an infinity: leave this step out");
    measured.energy = loss.energy;
    measured.candidates.push_back({codec->spec().text(), loss.payload_bytes, loss.energy_lost});
  }
  return measured;
}

void add_sample(AllocationParameter& sum, const AllocationParameter& sample) {
  const auto names = &AllocationCandidate::codec;
  if (sum.name != sample.name || sum.count != sample.count ||
      !std::ranges::equal(sum.candidates, sample.candidates, {}, names, names))
    throw InvalidArgumentError(
        "samples of \"" + sum.name + "\" (" + std::to_string(sum.count) + " values) and \"" +
        sample.name + "\" (" + std::to_string(sample.count) +
        " values) differ: give the same parameters with the same shapes in the "
        "same order");
  sum.energy += sample.energy;
  for (std::size_t i = 0; i < sum.candidates.size(); ++i) {
    sum.candidates[i].bytes = std::max(sum.candidates[i].bytes, sample.candidates[i].bytes);
    sum.candidates[i].energy_lost += sample.candidates[i].energy_lost;
  }
}

}  // namespace tersor
