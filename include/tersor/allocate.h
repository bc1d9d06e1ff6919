// Which codec for which parameter: the least energy lost for a budget of bytes. The problem of
// L-GreCo (Markov, Alimohammadi, Frantar and Alistarh 2022, arXiv 2210.17357), solved on convex
// hulls. docs/algorithms.md tells how.
#pragma once

#include <tersor/reducer.h>
#include <tersor/span.h>
#include <tersor/threads.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace tersor {

/// What one codec makes of a parameter's gradients.
struct AllocationCandidate {
  std::string codec;      ///< a spec, as a rule will have it
  std::size_t bytes = 0;  ///< of one payload
  double energy_lost = 0;  ///< |p − d|², sent and decoded, over all samples; not finite: no choice
};

/// A parameter, and what it may travel by.
struct AllocationParameter {
  std::string name;
  std::size_t count = 0;  ///< values
  double energy = 0;      ///< |p|² over all samples
  std::vector<AllocationCandidate> candidates;
};

/// A codec for each parameter.
struct Allocation {
  std::vector<std::size_t> chosen;  ///< of each parameter the candidate's place in its list
  /// A rule for each parameter, in their order, and a last one of "*" and "bf16".
  std::vector<ReducerRule> rules;
  std::size_t count = 0;  ///< values
  std::size_t bytes = 0;  ///< of one payload of each
  double energy = 0;      ///< of all parameters
  double energy_lost = 0;

  double bits() const;  ///< a value
};

/// One sample of a parameter's gradient, in host memory.
struct AllocationGradient {
  std::string name;
  ConstValueSpan gradient;
  std::size_t rows = 0;
  std::size_t columns = 0;  ///< 0: a 1-D parameter
};

/// What is tried unless told otherwise: none, bf16, int8, and with feedback hadamard of 4 to 1
/// bits, blocktopk of 10, 3 and 1 % and lowrank of rank 1 to 8.
std::vector<std::string> allocation_codecs();

/// Encodes and decodes a gradient by each codec that carries its shape, without feedback; `lowrank`
/// begins anew, and loses more than when it is warm. Throws InvalidArgument that names the
/// parameter where a value is not finite.
AllocationParameter measure_candidates(const AllocationGradient& sample,
                                       std::span<const std::string> codecs,
                                       Threads* threads = nullptr);

/// Adds the energies of another sample of the same parameter, measured by the same codecs. Throws
/// InvalidArgument that names the parameter where name, count or codecs differ.
void add_sample(AllocationParameter& sum, const AllocationParameter& sample);

/// Chooses for every parameter so that all payloads together take at most `bits` a value, and
/// little energy is lost: the least there is for as few bytes, or what one step more on one
/// parameter's hull loses. A parameter whose gradients are all zeros gets the fewest bytes. The
/// same on any machine. Throws InvalidArgument where the budget is smaller than the smallest
/// possible, which the message says, and where a parameter has no candidate.
Allocation allocate(std::span<const AllocationParameter> parameters, double bits);

}  // namespace tersor
