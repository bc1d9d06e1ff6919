// What an exchange consists of, before anything moves: slots (parameters), cut into pieces, which
// lie in frames, which make up the messages of a chunk.
//
// A chunk is what travels together and is encoded, sent and decoded as one. It has *lanes*: lane r
// holds what rank r owns (or, where nobody owns anything, lane 0 holds all). A lane is a list of
// frames, one for each codec and dtype in it.
#pragma once

#include "comm/collectives/parts.h"

#include <tersor/codec.h>
#include <tersor/collectives.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace tersor {

/// Which way the bytes of a chunk go.
enum class Flow : std::uint8_t {
  kNative,   ///< bare values, summed by the transport
  kTwoShot,  ///< lanes to their owners; reduced; all-gather
  kOneShot,  ///< lane 0 to everybody, who adds all ranks'
  kScatter,  ///< lanes to their owners, who add them: reduce_scatter
  kGather,   ///< own lane to everybody: allgather
};

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

  ConstValueSpan input = {};       ///< what this rank contributes
  ValueSpan output = {};           ///< where the result goes; may be the input's memory
  SegmentState residual = {};      ///< the sender's, over what this rank encodes; empty: none
  std::size_t residual_first = 0;  ///< where that begins
  SegmentState owner = {};         ///< the owner's, over what this rank owns; empty: none
  std::size_t owner_first = 0;     ///< where that begins
  const std::uint32_t* active = nullptr;
  std::optional<std::uint64_t> window =
      {};  ///< only this part is decoded (output's count), from here
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
};

/// What one rank owns of a chunk.
struct Lane {
  std::vector<FramePlan> frames = {};
  std::size_t message_bytes = 0;  ///< capacity of the frames, one behind the other
};

struct ChunkPlan {
  Flow flow = Flow::kTwoShot;
  Memory memory = Memory::kHost;  ///< of messages and workspace
  std::vector<Lane> lanes = {};
  // Of a native flow: how many bare values each lane holds, and their type.
  std::vector<std::size_t> native_counts = {};
  Dtype native_dtype = Dtype::kF32;
  bool in_place = false;  ///< bare values are the gradient itself: no copy

  std::size_t lane_bytes() const;    ///< of all lanes' messages together
  std::size_t largest_lane() const;  ///< bytes
  std::size_t workspace_bytes() const;
  bool even() const;  ///< all lanes have messages of one length
};

/// Which part of every slot an exchange carries: all of it, unless it is one of a hierarchy.
struct Sharding {
  int shard = 0;
  int shards = 1;
};

/// Whose values an exchange carries: this rank's own, or those that its host has added.
enum class Carried : std::uint8_t { kOwn, kOfHost };

/// What all chunks of an exchange have in common.
struct PlanContext {
  std::span<const Slot> slots;
  int ranks = 1;
  unsigned threads = 1;
  Sharding sharding = {};
  Carried carried = Carried::kOwn;
  const Codec* codec = nullptr;  ///< of all slots; null: their own
  Memory memory = Memory::kHost;
};

/// The chunk that these slots make up whole, uncut.
ChunkPlan plan_whole(const PlanContext& context, std::span<const std::uint32_t> slots, Flow flow);

/// Chunks of at most about `chunk_count` values over all lanes that one slot is cut into, where its
/// codec allows it; else one chunk.
std::vector<ChunkPlan> plan_cut(const PlanContext& context, std::uint32_t slot, Flow flow,
                                std::size_t chunk_count);

/// The chunk whose lane r has these pieces: lanes[r].
ChunkPlan plan_pieces(const PlanContext& context, std::span<const std::vector<Piece>> lanes,
                      Flow flow);

/// Chunks of a collective whose lane r is slot r (reduce_scatter, allgather).
std::vector<ChunkPlan> plan_lanes(const PlanContext& context, Flow flow, std::size_t chunk_count);

}  // namespace tersor
