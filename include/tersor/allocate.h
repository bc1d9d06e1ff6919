// Chooses a codec for each parameter: the least squared error within a budget of bytes. The problem
// is that of L-GreCo (Markov, Alimohammadi, Frantar and Alistarh 2022, arXiv 2210.17357). Tersor
// solves the problem on convex hulls; docs/explain/algorithms.md describes the method.
#pragma once

#include <tersor/reducer.h>
#include <tersor/span.h>
#include <tersor/threads.h>

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace tersor {

/// Measurements of one codec on one parameter's gradients.
struct AllocationCandidate {
  std::string codec;      ///< a spec, as written in the resulting rule
  std::size_t bytes = 0;  ///< bytes of one payload
  /// |p − d|² over all samples: p is the encoded value, d the decoded value. If not finite, the
  /// candidate cannot be chosen.
  double energy_lost = 0;
};

/// A parameter and its candidate codecs.
struct AllocationParameter {
  std::string name;       ///< name of the parameter
  std::size_t count = 0;  ///< number of values
  double energy = 0;      ///< |p|² over all samples, where p is the encoded value
  std::vector<AllocationCandidate> candidates;  ///< measured codecs
};

/// The chosen codec of each parameter.
struct Allocation {
  std::vector<std::size_t> chosen;  ///< for each parameter, the index of the chosen candidate
  /// One rule per parameter, in the order of the parameters. A last rule maps "*" to "bf16".
  std::vector<ReducerRule> rules;
  std::size_t count = 0;   ///< number of values of all parameters
  std::size_t bytes = 0;   ///< bytes of all parameters, one payload each
  double energy = 0;       ///< sum over all parameters
  double energy_lost = 0;  ///< sum over all parameters

  double bits() const;  ///< Returns the payload bits per value.
};

/// One sample of a parameter's gradient, in host memory.
struct AllocationGradient {
  std::string name;         ///< name of the parameter
  ConstValueSpan gradient;  ///< the sampled values
  std::size_t rows = 0;     ///< shape; 0 for a 1-D parameter
  std::size_t columns = 0;  ///< 0 for a 1-D parameter
};

/// Returns the default candidates: none, bf16 and int8; with error feedback hadamard of 4, 3, 2 and
/// 1 bits, blocktopk of density 10, 3 and 1 %, and lowrank of rank 8, 4, 2 and 1. Thread-safe.
std::vector<std::string> allocation_codecs();

/// Encodes and decodes one gradient sample with each codec that accepts the sample's shape.
/// Residuals are not used. `lowrank` starts without a memory, so its measured error is larger than
/// in a running training.
///
/// `codecs` holds specs. `threads` is a thread pool for the codecs; null uses the calling thread
/// alone. Throws InvalidArgumentError for a malformed spec, and if a value is not finite; the
/// message then names the parameter. Thread-safe, with one thread pool per call.
AllocationParameter measure_candidates(const AllocationGradient& sample,
                                       std::span<const std::string> codecs,
                                       Threads* threads = nullptr);

/// Adds the energies and squared errors of another sample of the same parameter, measured with the
/// same codecs. Keeps the larger payload size of each candidate. Throws InvalidArgumentError if the
/// name, the count or the codecs differ; the message names the parameter.
void add_sample(AllocationParameter& sum, const AllocationParameter& sample);

/// Chooses a codec for every parameter. All payloads together take at most `bits` bits per value.
/// If the budget is met exactly, no other choice has a smaller squared error. Otherwise the squared
/// error exceeds the minimum by at most the increase of the last step on one parameter's hull. A
/// parameter whose gradients are all zeros gets the fewest bytes. The result is the same on every
/// machine.
///
/// Throws InvalidArgumentError if the budget is below the smallest possible size (the message gives
/// this size), if a parameter has no candidate, and if there are no values. Thread-safe.
Allocation allocate(std::span<const AllocationParameter> parameters, double bits);

}  // namespace tersor
