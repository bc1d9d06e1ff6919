// The contents of an exchange: parameters (parameters) are cut into pieces, pieces form frames, and
// frames form the messages of a chunk.
//
// A chunk is sent with one schedule. The *shards* of a chunk are units of encoding, sending and
// decoding: the values owned by one rank or, without owners, all values. A shard is a list of
// frames, one per codec and dtype.
#pragma once

#include "comm/collectives/parts.h"
#include "comm/collectives/schedule.h"

#include <tersor/codec.h>
#include <tersor/collectives.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace tersor {

/// A parameter in an exchange: the properties that plans depend on.
struct ExchangeParameter {
  std::uint32_t parameter = 0;
  std::size_t count = 0;
  std::uint64_t first_index = 0;  ///< index of the parameter's first value in the parameter
  std::size_t rows = 0;
  std::size_t columns = 0;
  Dtype dtype = Dtype::kF32;
  std::shared_ptr<const Codec> codec;
  /// The algorithm of this parameter; kAuto: the common algorithm.
  Algorithm algorithm = Algorithm::kAuto;
  std::size_t chunk_count = 0;  ///< values, chosen for this parameter; 0: the common length
  std::size_t min_unit = 0;     ///< minimum cut unit, if codecs with other units may be substituted
  Collective collective = Collective::kAllreduce;
  const std::uint32_t* active = nullptr;

  /// The parameter is cut at multiples of this number of values.
  std::size_t unit() const { return std::max(min_unit, unit_of(*codec, count)); }
};

/// The values of a parameter. Spans may be bound again between exchanges.
struct ParameterBinding {
  ConstValueSpan input = {};  ///< contribution of this rank
  ValueSpan output = {};      ///< result; may be the input's memory
  ValueSpan host_sum = {};    ///< intermediate sum of a host; empty: in the output
  /// Start of the output in the parameter: in a reduce-scatter, this rank's shard.
  std::size_t output_first = 0;
  /// If set, only output.count() values from this index are decoded.
  std::optional<std::uint64_t> window = {};
};

/// The residuals of a parameter on this rank, and the codec's own state.
struct ParameterFeedback {
  SegmentState sender = {};      ///< for the encoded values; empty: none
  std::size_t sender_first = 0;  ///< start of the sender's residual in the parameter
  /// In a hierarchical reduce-scatter: owners of the shards encoded by this rank, ascending. The
  /// residuals are contiguous.
  std::vector<int> encoded_shards = {};
  SegmentState owner = {};    ///< for the owned values; empty: none
  OwnedRanges owned = {};     ///< owned values
  SegmentMemory memory = {};  ///< the codec's own state for the whole parameter; empty: none
};

/// A part of a parameter.
struct Piece {
  std::uint32_t param = 0;
  Range range;
};

/// The segments of a frame.
struct FramePlan {
  const Codec* codec = nullptr;
  Dtype dtype = Dtype::kF32;
  std::vector<Piece> pieces = {};
  std::vector<Segment> segments = {};
  std::size_t count = 0;         ///< values of all pieces
  std::size_t frame_bytes = 0;   ///< capacity
  std::size_t result_bytes = 0;  ///< capacity of a frame with a sum (Codec::results)
  std::size_t workspace_bytes = 0;
  // The codec's round state, in the chunk's memory:
  std::size_t round_state_bytes = 0;
  std::size_t round_state_offset = 0;
  std::vector<Round> rounds = {};

  /// True if the raw values are the gradient itself and are summed in place.
  bool in_place() const {
    return pieces.size() == 1 && codec->traits().lossless && rounds.front().native_dtype == dtype;
  }
  /// The codec and the capacity of frames with values or, if `sums`, with sums.
  const Codec& codec_of(bool sums) const { return sums ? codec->results() : *codec; }
  std::size_t bytes_of(bool sums) const { return sums ? result_bytes : frame_bytes; }
  std::size_t raw_bytes(std::size_t round) const {
    return rounds[round].native_count * dtype_bytes(rounds[round].native_dtype);
  }
};

/// The source of the values: this rank's own values, own values for the host's sum, or the host's
/// sum and results derived from it.
enum class Source : std::uint8_t { kOwn, kForHostSum, kHostSum };

struct Shard {
  std::vector<FramePlan> frames = {};
  std::size_t message_bytes = 0;  ///< total capacity of the frames
  std::size_t result_bytes = 0;   ///< the same for frames with sums
  std::size_t contributions = 1;  ///< number of ranks exchanging the shard
  int group_rank = 0;             ///< group rank in this exchange; seeds the random numbers
  Source source = Source::kOwn;
  Divisors divisors = {1, 1, 1, 1};     ///< divisors of a mean, by number of earlier reductions
  std::uint64_t signature = 0;          ///< of the frames; 0: the collective's
  std::optional<int> source_rank = {};  ///< rank that encoded the shard, if not the sender
};

using Shards = std::vector<Shard>;

struct ChunkPlan {
  std::shared_ptr<const Schedule> schedule = nullptr;
  Memory memory = Memory::kHost;  ///< of messages and workspace
  /// True if the next chunk reuses this chunk's tags and is decoded after this chunk. A rank uses a
  /// tag per message.
  bool has_successor = false;
  std::uint64_t signature = 0;  ///< of the operations; 0: the collective's
  Shards shards = {};
  std::vector<Dtype> raw_dtypes = {};  ///< by step, for native steps
  // The memory needed to run the chunk:
  std::array<std::size_t, 2> buffer_bytes = {};  ///< for even and odd steps
  std::size_t workspace_bytes = 0;
  std::size_t round_state_bytes = 0;
};

/// The capacity of a shard's message in a step.
inline std::size_t message_bytes(const Shard& shard, const Step& step) {
  return step.sums ? shard.result_bytes : shard.message_bytes;
}

/// The memory for the messages a step creates for a shard.
std::size_t buffer_bytes(const Shard& shard, const Step& step);

/// The host shard of each parameter in an exchange; by default, the whole parameter.
struct Sharding {
  int host_shard = 0;
  int host_shards = 1;
};

/// The common properties of all chunks of an exchange.
struct PlanContext {
  std::span<const ExchangeParameter> params;
  int ranks = 1;       ///< number of ranks exchanging with each other
  Grid grid = {};      ///< of these ranks
  int group_rank = 0;  ///< group rank of this rank
  unsigned threads = 1;
  Sharding sharding = {};
  Source source = Source::kOwn;
  const Codec* codec = nullptr;  ///< of all parameters; null: each parameter's own codec
  Memory memory = Memory::kHost;
  float addends = 1;  ///< number of ranks contributing to a mean
};

/// The shards of an allreduce of whole parameters, with the last round `last`.
Shards plan_whole(const PlanContext& context, std::span<const std::uint32_t> params, Exchange last);

/// The shards of each chunk of a parameter. A chunk has at most about `chunk_count` values over all
/// shards. An indivisible codec gets a single chunk.
std::vector<Shards> plan_cut(const PlanContext& context, std::uint32_t param, Exchange last,
                             std::size_t chunk_count);

/// Like plan_cut, with parameter parameters[l] as shard l (reduce_scatter, allgather).
std::vector<Shards> plan_params(const PlanContext& context, std::span<const int> params,
                                std::size_t chunk_count);

/// Cuts pieces into chunks, each with a part of every piece. Returns at least one chunk.
std::vector<std::vector<Piece>> cut_pieces(std::span<const ExchangeParameter> params,
                                           std::span<const Piece> pieces, std::size_t chunk_count,
                                           std::size_t max_shards = kShardsOfChunk);

/// Returns 0 if each row is a segment. Otherwise, all rows of a message are a segment, and messages
/// begin at multiples of the returned number of rows. Rows are joined in two cases: a row consists
/// of whole blocks of the codec, or the codec does not make a row of fewer than 512 values shorter
/// than the values themselves.
std::size_t joined_rows(const ExchangeParameter& param, std::size_t columns);

/// Shard l holds the rows `rows` of parameter l in a frame, with `columns` values per row. If the
/// parameter has none of these rows, the shard has no frame, except for the first rows.
Shards plan_rows(const PlanContext& context, std::size_t columns, Range rows);

/// Shard l holds the pieces shards[l].
Shards plan_pieces(const PlanContext& context, std::span<const std::vector<Piece>> shards);

/// Makes a chunk from the shards of a schedule.
ChunkPlan make_chunk(std::shared_ptr<const Schedule> schedule, Shards shards, Memory memory);

}  // namespace tersor
