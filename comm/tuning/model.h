// The cost model: predicts the duration of an allreduce from a few figures. A pure function, so
// ranks with equal figures make equal decisions. docs/explain/algorithms.md derives the formulas.
#pragma once

#include <tersor/auto.h>
#include <tersor/codec.h>
#include <tersor/collectives.h>

#include <array>
#include <cstddef>
#include <string_view>
#include <vector>

namespace tersor {

/// The duration of a codec call, in seconds, as a function of the number of values.
struct WorkCost {
  double per_call = 0;
  double per_value = 0;

  double seconds(double count) const { return per_call + per_value * count; }
};

/// The costs of a codec's calls for a dtype, on an otherwise idle core.
struct CodecCosts {
  WorkCost encode;
  WorkCost decode;         ///< first payload
  WorkCost decode_more;    ///< each further payload of the same call
  WorkCost reduce;         ///< first payload, including encoding the sum
  WorkCost reduce_more;    ///< each further payload of the same call
  WorkCost encode_native;  ///< to raw values; 0 if the gradient itself is sent
  WorkCost decode_native;
};

/// All costs, in wire order.
inline std::array<WorkCost*, 7> fields_of(CodecCosts& costs) {
  return {&costs.encode,      &costs.decode,        &costs.decode_more,  &costs.reduce,
          &costs.reduce_more, &costs.encode_native, &costs.decode_native};
}

/// The distribution of ranks over hosts and the link figures.
struct Network {
  LinkFigures link;        ///< of each host
  LinkFigures local = {};  ///< between ranks of a host; unused with a rank per host
  int ranks_per_host = 1;
};

/// All inputs of a prediction, except for the query.
struct CostFigures {
  Network network;
  CodecCosts codec;
  double add_seconds_per_byte = 0;  ///< of a native sum: adding received values to local values
  double crowding = 1;              ///< number of ranks sharing a core during encoding
};

/// Describes the allreduce to predict.
struct CostQuery {
  const Codec* codec = nullptr;
  Algorithm algorithm = Algorithm::kTwoShot;  ///< not kAuto
  Dtype dtype = Dtype::kF32;
  std::size_t count = 0;
  int ranks = 1;
  std::size_t chunk_count = kDefaultChunkCount;
  std::vector<int> dims = {};  ///< of the two-shot grid; if empty, the standard grid
  double error_growth = kDefaultErrorGrowth;
};

struct Prediction {
  double seconds = 0;
  double work_seconds = 0;  ///< upper bound of encoding, reducing and decoding
  double sent_bytes = 0;    ///< per rank
};

/// Predicts an allreduce. Throws InvalidArgumentError if a figure is negative or not finite, or if
/// the codec does not support the algorithm.
Prediction predict_allreduce(const CostQuery& query, const CostFigures& figures);

/// The fastest two-shot grid and its prediction.
struct GridPrediction {
  std::vector<int> dims;
  Prediction prediction;
};

/// Predicts an allreduce on the fastest grid allowed by `query.error_growth`. A grid with more
/// dimensions must be at least 5 % faster. Given `query.dims` and algorithms other than two-shot
/// leave no choice of a grid.
GridPrediction predict_on_best_grid(const CostQuery& query, const CostFigures& figures);

/// Predicts a reduce-scatter: the first half of a two-shot allreduce.
Prediction predict_reduce_scatter(const CostQuery& query, const CostFigures& figures);

/// Predicts the hierarchical allreduce: raw sums within hosts, two-shot of each rank's shard
/// between hosts, then the distribution within hosts. Ignores `query.algorithm`.
Prediction predict_hierarchical(const CostQuery& query, const CostFigures& figures);

/// Predicts a sum of raw values of `query.dtype` by halving and doubling (Thakur, Rabenseifner
/// and Gropp 2005). Other libraries use this algorithm. Here, the prediction is only a baseline for
/// all alternatives. Ignores `query.codec` and `query.algorithm`.
Prediction predict_halving_doubling(const CostQuery& query, const CostFigures& figures);

/// The algorithms supported by the codec in an allreduce.
std::vector<Algorithm> possible_algorithms(const Codec& codec, Dtype dtype);

/// Throws InvalidArgumentError if a figure is negative, infinite or NaN. `name` is the link's name
/// in the text.
void check_link(const LinkFigures& link, std::string_view name);

}  // namespace tersor
