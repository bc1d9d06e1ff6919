// What an exchange consists of, before anything moves: slots (parameters), cut into pieces, which
// lie in frames, which make up the messages of a chunk.
//
// A chunk is what travels together, by one schedule. Its *lanes* are what is encoded, sent and
// decoded as one: what one rank owns of it or, where nobody owns anything, all of it. A lane is a
// list of frames, one for each codec and dtype in it.
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

/// A parameter, as an exchange sees it. Spans may be bound anew between exchanges.
struct Slot {
  std::uint32_t parameter = 0;
  std::size_t count = 0;
  std::uint64_t first_index = 0;  ///< of the slot's first value in its parameter
  std::size_t rows = 0;
  std::size_t columns = 0;
  Dtype dtype = Dtype::kF32;
  std::shared_ptr<const Codec> codec;
  Algorithm algorithm = Algorithm::kAuto;  ///< chosen for this slot; kAuto: as for all
  std::size_t chunk_count = 0;             ///< values, chosen for this slot; 0: as for all
  std::size_t least_unit = 0;  ///< of its cuts, where codecs of other units may take its place
  Collective collective = Collective::kAllreduce;

  ConstValueSpan input = {};       ///< what this rank contributes
  ValueSpan output = {};           ///< where the result goes; may be the input's memory
  ValueSpan host_sum = {};         ///< where a host's sum goes first; empty: to the output
  std::size_t output_first = 0;    ///< where that begins: of a reduce-scatter at this rank's shard
  SegmentState residual = {};      ///< the sender's, over what this rank encodes; empty: none
  std::size_t residual_first = 0;  ///< where that begins
  SegmentState owner = {};         ///< the owner's, over what this rank owns; empty: none
  OwnedRanges owned = {};          ///< what that is
  /// Of a reduce-scatter by hosts: whose shards this rank encodes, ascending; their residuals lie
  /// one behind the other.
  std::vector<int> encoded_shards = {};
  SegmentMemory memory = {};  ///< the codec's own, over the whole parameter; empty: none
  const std::uint32_t* active = nullptr;
  std::optional<std::uint64_t> window =
      {};  ///< only this part is decoded (output's count), from here

  /// It is cut at multiples of so many values.
  std::size_t unit() const { return std::max(least_unit, unit_of(*codec, count)); }
};

/// A part of a slot.
struct Piece {
  std::uint32_t slot = 0;
  Range range;
};

/// The segments of one frame.
struct FramePlan {
  const Codec* codec = nullptr;
  Dtype dtype = Dtype::kF32;
  std::vector<Piece> pieces = {};
  std::vector<Segment> segments = {};
  std::size_t frame_bytes = 0;  ///< capacity
  std::size_t workspace_bytes = 0;
  // What the codec remembers from round to round, in the chunk's kept memory:
  std::size_t kept_bytes = 0;
  std::size_t kept_offset = 0;
  std::vector<Round> rounds = {};

  /// Its bare values are the gradient itself: they are summed where they lie.
  bool in_place() const {
    return pieces.size() == 1 && codec->traits().lossless && rounds.front().native_dtype == dtype;
  }
  std::size_t bare_bytes(std::size_t round) const {
    return rounds[round].native_count * dtype_bytes(rounds[round].native_dtype);
  }
};

/// Whose values an exchange carries: this rank's own; those, on their way to the sum of its host;
/// or that sum, and what comes of it.
enum class Carried : std::uint8_t { kOwn, kToHost, kOfHost };

struct Lane {
  std::vector<FramePlan> frames = {};
  std::size_t message_bytes = 0;  ///< capacity of the frames, one behind the other
  std::size_t contributions = 1;  ///< ranks that exchange it
  int place = 0;  ///< this rank's, among those that exchange it: random numbers depend on it
  Carried carried = Carried::kOwn;
  Shares shares = {1, 1, 1, 1};   ///< of a mean, by how often what is added was added before
  std::uint64_t signature = 0;    ///< of its frames; 0: the collective's
  std::optional<int> maker = {};  ///< the rank that encoded it; none: the one that sends it
};

using Lanes = std::vector<Lane>;

struct ChunkPlan {
  std::shared_ptr<const Schedule> schedule = nullptr;
  Memory memory = Memory::kHost;  ///< of messages and workspace
  /// The next one goes under the same tags, of which each rank has as many as it has messages for
  /// there, and is decoded after this one.
  bool followed = false;
  std::uint64_t signature = 0;  ///< of its operations; 0: the collective's
  Lanes lanes = {};
  std::vector<Dtype> bare_dtypes = {};  ///< of each step, where that is native
  // What running it takes:
  std::array<std::size_t, 2> made_bytes = {};  ///< by even steps and by odd ones
  std::size_t workspace_bytes = 0;
  std::size_t kept_bytes = 0;
};

/// Room for what this rank makes of a lane in a step.
std::size_t made_bytes(const Lane& lane, const Step& step);

/// Which part of every slot an exchange carries: all of it, unless it is one of a hierarchy.
struct Sharding {
  int shard = 0;
  int shards = 1;
};

/// What all chunks of an exchange have in common.
struct PlanContext {
  std::span<const Slot> slots;
  int ranks = 1;   ///< that exchange with each other
  Grid grid = {};  ///< of them
  int place = 0;   ///< this rank's among them
  unsigned threads = 1;
  Sharding sharding = {};
  Carried carried = Carried::kOwn;
  const Codec* codec = nullptr;  ///< of all slots; null: their own
  Memory memory = Memory::kHost;
  float adds = 1;  ///< ranks whose values are added, of which a mean is taken
};

/// The lanes of an allreduce of these slots whole, uncut, whose last round goes so.
Lanes plan_whole(const PlanContext& context, std::span<const std::uint32_t> slots, Exchange last);

/// Those of the chunks, of at most about `chunk_count` values over all lanes, that one slot is cut
/// into, where its codec allows it; else of one chunk.
std::vector<Lanes> plan_cut(const PlanContext& context, std::uint32_t slot, Exchange last,
                            std::size_t chunk_count);

/// The same where lane l is slot slots[l] (reduce_scatter, allgather).
std::vector<Lanes> plan_slots(const PlanContext& context, std::span<const int> slots,
                              std::size_t chunk_count);

/// The chunks that pieces are cut into, each of a part of every piece; at least one.
std::vector<std::vector<Piece>> cut_pieces(std::span<const Slot> slots,
                                           std::span<const Piece> pieces, std::size_t chunk_count,
                                           std::size_t most_lanes = kLanesOfChunk);

/// 0: each row is a segment. Otherwise all rows of a message are one segment, and messages begin at
/// multiples of the returned number of rows. Rows are joined if a row is whole blocks of the codec,
/// or if the codec does not make a row of fewer than 512 values shorter than the values themselves.
std::size_t joined_rows(const Slot& slot, std::size_t columns);

/// Lane l is these rows of slot l, in one frame, of so many values each; without a frame where the
/// slot has none of them, unless they are its first.
Lanes plan_rows(const PlanContext& context, std::size_t columns, Range rows);

/// Lane l has these pieces: lanes[l].
Lanes plan_pieces(const PlanContext& context, std::span<const std::vector<Piece>> lanes);

/// A chunk of these lanes, which are those of the schedule.
ChunkPlan make_chunk(std::shared_ptr<const Schedule> schedule, Lanes lanes, Memory memory);

}  // namespace tersor
