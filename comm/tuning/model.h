// The cost model: how long an allreduce takes, from few figures. A pure function, so that ranks
// which hold equal figures decide alike. docs/algorithms.md derives the formulas.
#pragma once

#include <tersor/auto.h>
#include <tersor/codec.h>
#include <tersor/collectives.h>

#include <array>
#include <cstddef>
#include <string_view>
#include <vector>

namespace tersor {

/// Seconds of one call of a codec on so many values.
struct WorkCost {
  double per_call = 0;
  double per_value = 0;

  double seconds(double count) const { return per_call + per_value * count; }
};

/// What a codec's calls cost for one dtype, on one core that nobody else uses.
struct CodecCosts {
  WorkCost encode;
  WorkCost decode;         ///< of one payload
  WorkCost decode_more;    ///< of each further payload of the same call
  WorkCost reduce;         ///< of one payload, the encoding of the sum included
  WorkCost reduce_more;    ///< of each further payload of the same call
  WorkCost encode_native;  ///< to bare values; 0 where the gradient itself travels
  WorkCost decode_native;
};

/// All of them, in the order in which messages hold them.
inline std::array<WorkCost*, 7> fields_of(CodecCosts& costs) {
  return {&costs.encode,      &costs.decode,        &costs.decode_more,  &costs.reduce,
          &costs.reduce_more, &costs.encode_native, &costs.decode_native};
}

/// Where ranks are, and what lies between them.
struct Network {
  LinkFigures link;        ///< of each host
  LinkFigures local = {};  ///< between ranks of one host; not used where there is one a host
  int ranks_per_host = 1;
};

/// All figures that a prediction depends on, beside the question.
struct CostFigures {
  Network network;
  CodecCosts codec;
  double add_seconds_per_byte = 0;  ///< of a native sum: adding what came to what is there
  double crowding = 1;              ///< ranks that share a core while they encode
};

/// The question: how long does this allreduce take?
struct CostQuestion {
  const Codec* codec = nullptr;
  Algorithm algorithm = Algorithm::kTwoShot;  ///< not kAuto
  Dtype dtype = Dtype::kF32;
  std::size_t count = 0;
  int ranks = 1;
  std::size_t chunk_count = kDefaultChunkCount;
  std::vector<int> dims = {};  ///< of two-shot; none: the standard grid
  double error_growth = kDefaultErrorGrowth;
};

struct Prediction {
  double seconds = 0;
  double work_seconds = 0;  ///< of them, at most, encoding, reducing, decoding
  double sent_bytes = 0;    ///< by one rank
};

/// Throws InvalidArgument where a figure is not finite or negative, or the codec cannot go so.
Prediction predict_allreduce(const CostQuestion& question, const CostFigures& figures);

/// How two-shot goes on the quickest grid.
struct GridPrediction {
  std::vector<int> dims;
  Prediction prediction;
};

/// The same where the grid is left open: of those that `question.error_growth` allows, but one with
/// more dimensions only where it is a twentieth quicker. `question.dims` are not left open; another
/// algorithm has none.
GridPrediction predict_on_best_grid(const CostQuestion& question, const CostFigures& figures);

/// The same for a reduce-scatter, which two-shot goes by its first half alone.
Prediction predict_reduce_scatter(const CostQuestion& question, const CostFigures& figures);

/// The same for the hierarchical way: sums of bare values within hosts, between hosts two-shot of
/// each rank's share, and back. `question.algorithm` is not looked at.
Prediction predict_hierarchical(const CostQuestion& question, const CostFigures& figures);

/// What a sum of bare values, of `question.dtype`, would take by halving and doubling (Thakur,
/// Rabenseifner and Gropp 2005), which other libraries have: not a way of ours, but what any way
/// has to beat. `question.codec` and `question.algorithm` are not looked at.
Prediction predict_halving_doubling(const CostQuestion& question, const CostFigures& figures);

/// The algorithms that an allreduce by this codec may take.
std::vector<Algorithm> possible_algorithms(const Codec& codec, Dtype dtype);

/// Throws InvalidArgument where a figure is negative, infinite or not a number; `name` is the
/// link's in the message.
void check_link(const LinkFigures& link, std::string_view name);

}  // namespace tersor
