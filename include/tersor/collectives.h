// Collectives of encoded bytes. Only here codecs and transports are used together.
// docs/explain/algorithms.md describes the algorithms and their errors.
//
// All collectives accept host or device memory, must be called by all ranks with equal options, and
// are safe to call from one thread at a time per channel (TransportTraits::any_thread).
#pragma once

#include <tersor/codec.h>
#include <tersor/modes.h>
#include <tersor/transport.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace tersor {

class Tuner;

/// How the ranks exchange the codec's output.
enum class Algorithm : std::uint8_t {
  /// Native if the transport can add the codec's values. Otherwise chosen by codec, count and
  /// ranks.
  kAuto,
  /// The transport adds raw values (none, bf16; f16 as f32).
  kNative,
  /// Shards to their owners, reduction there, then all-gather: two quantisations.
  kTwoShot,
  /// All-gather of payloads; every rank adds all payloads: one quantisation.
  kOneShot,
  /// Reduces within each host without compression, then between hosts with the codec as kAuto does,
  /// then sends the result within each host. On a single host, a native sum. If every host has one
  /// rank, the same as kAuto. Also for reduce_scatter, allgather and all_to_all on hosts with equal
  /// numbers of ranks. On other hosts, these three use kAuto if the transport found the hosts
  /// (CollectiveStatistics::algorithm reports this), and throw InvalidArgumentError if the caller
  /// gave
  /// them.
  kHierarchical,
};

/// Returns "auto", "native", "two-shot", "one-shot" or "hierarchical". Thread-safe.
std::string_view algorithm_name(Algorithm algorithm);
/// Returns the algorithm with this name. Throws InvalidArgumentError for an unknown name; the
/// message lists the names. Thread-safe.
Algorithm parse_algorithm(std::string_view name);

/// The state of error feedback between calls. The caller owns the memory, which is zero at first
/// and holds the values after the last step. All residuals have one dtype, f32 or bf16. If
/// gradients are on a device, all memory including `words` must be on the device.
struct CollectiveState {
  /// One value per value that this rank encodes. Hierarchical: encoded_count(...) values for
  /// allreduce, scattered_count(...) for reduce_scatter.
  ValueSpan residual;
  ValueSpan owner_residual;     ///< owned_count(...) values, only for two-shot
  StateWords* words = nullptr;  ///< step and factors; each call advances the step
};

/// Statistics of one call. Bytes are counted by the transport. On a device, the call only queues:
/// `seconds` is the time of queueing, and other seconds and overflows (see StateWords) are 0.
struct CollectiveStatistics {
  Algorithm algorithm = Algorithm::kAuto;  ///< the chosen algorithm
  std::size_t chunks = 0;                  ///< number of chunks
  std::uint64_t gradient_bytes = 0;        ///< uncompressed bytes of the values
  std::uint64_t sent_bytes = 0;            ///< bytes that this rank sent
  double encode_seconds = 0;               ///< includes reduce
  double decode_seconds = 0;               ///< time of decoding
  double wire_seconds = 0;                 ///< time with at least one message in transfer
  double seconds = 0;                      ///< time of the call
  std::uint64_t overflows = 0;             ///< finite values that became infinite
};

/// Plans and buffers for reuse between calls with equal arguments: the second call allocates no
/// buffer. The workspace also keeps the splits of hierarchical collectives; destroy the workspace
/// before its transport. Two calls must not use a workspace at the same time. Device buffers are
/// freed only when the device is idle, so calls without a workspace wait for the device. Captured
/// calls need a workspace that outlives their graph.
class CollectiveWorkspace {
 public:
  /// Makes an empty workspace.
  CollectiveWorkspace();
  ~CollectiveWorkspace();
  CollectiveWorkspace(CollectiveWorkspace&&) noexcept;
  CollectiveWorkspace& operator=(CollectiveWorkspace&&) noexcept;

  struct Cache;
  /// Internal.
  Cache& cache() { return *cache_; }

 private:
  std::unique_ptr<Cache> cache_;
};

/// The default limit of a grid's squared error relative to one dimension; three dimensions reach
/// it.
inline constexpr double kDefaultErrorGrowth = 2;

/// The options of all collectives. Ranks must pass equal options, except for state, threads,
/// workspace and statistics.
struct CollectiveOptions {
  /// A spec. "+ef" needs `state`; "auto" needs `tuner`.
  std::string codec = "bf16";
  /// Used by allreduce, reduce_scatter and reduce.
  Reduction reduction = Reduction::kSum;
  /// Used by allreduce; kHierarchical also for other collectives. Any value except kAuto restricts
  /// reduce to two-shot.
  Algorithm algorithm = Algorithm::kAuto;
  /// Hierarchical: the host number of each rank; ranks with equal numbers share a host. Empty:
  /// Transport::hosts().
  std::span<const int> hosts = {};
  /// Hierarchical: the codec within a host, none or bf16.
  std::string host_codec = "none";
  /// The grid of a two-shot allreduce, 1 to 3 dimensions. Ranks exchange in one dimension after the
  /// other. A rank sends sum(dims - 1) messages twice instead of ranks - 1, and each dimension adds
  /// one quantisation. The product of dims is at most the number of ranks, and at least 9/10 of
  /// this number. Empty: the fewest dimensions with at most 32 ranks each, limited by
  /// `error_growth`.
  ///
  /// Also for reduce_scatter (without "+ef"; one quantisation per dimension), allgather and
  /// all_to_all (one quantisation; all_to_all with at most two dimensions). Their product must
  /// equal the number of ranks; empty means one dimension.
  std::span<const int> dims = {};
  /// Limits the squared error of a two-shot allreduce on a grid, relative to one dimension; at
  /// least 1. A grid of d dimensions has (1 + d) / 2 times the squared error. If the codec is
  /// "auto", AutoOptions::error_growth applies.
  double error_growth = kDefaultErrorGrowth;
  const CollectiveState* state = nullptr;  ///< null: no feedback
  /// Index of the parameter: rotates the owners and selects random numbers.
  std::uint32_t parameter = 0;
  /// A number for the memory order of a multi-dimensional array, chosen by the caller; 0 is the
  /// order of the indices. Ranks with different numbers have different signatures.
  std::uint32_t order = 0;
  /// The seed of stochastic rounding.
  std::uint64_t seed = 0;
  /// The step of stochastic rounding if there is no state. A CUDA graph keeps the number of its
  /// capture.
  std::uint32_t step = 0;
  /// Length of a chunk in values, rounded up to the codec's unit. By default (0), the length is
  /// TransportTraits::chunk_count.
  std::size_t chunk_count = 0;
  Checksum checksum = Checksum::kOn;  ///< True if frames have a checksum
  std::chrono::milliseconds timeout =
      kDefaultTimeout;                       ///< time without an answer after which a rank is late
  Threads* threads = nullptr;                ///< null: only the calling thread
  CollectiveWorkspace* workspace = nullptr;  ///< null: buffers live for one call
  CollectiveStatistics* statistics = nullptr;  ///< null: no statistics
  /// Makes the choice if `codec` is "auto".
  Tuner* tuner = nullptr;
};

/// Reduces `gradient` over all ranks, in place: any number of f32, bf16 or f16 values. Every rank
/// gets the same bits. If there is one rank, nothing changes.
///
/// Host values: blocks the calling thread. Device values: queued on `stream`; later work on the
/// stream sees the result. A transport that queues (NCCL) blocks the host only in the first of
/// equal calls. A transport over hosts (MPI) blocks until the result is queued. The next call on
/// the transport reports damaged frames and missed deadlines of device values. The values are then
/// NaN, never a wrong sum.
///
/// Throws InvalidArgumentError and changes nothing, also if spans or the state overlap. Allowed
/// overlaps: input and output as one span, or a shard at its rank's offset in the whole. Throws
/// TransportError, WireError or CudaError; the values are then undefined and the transport is
/// aborted.
void allreduce(Transport& transport, ValueSpan gradient, const CollectiveOptions& options = {},
               StreamView stream = {});

/// Reduces `input` over all ranks and writes this rank's shard to `shard`. `input` has one shard of
/// equal length per rank; rank r's shard starts at r · shard.count(). One quantisation. If the
/// codec has "+ef", `state.residual` has input.count() values (hierarchical: scattered_count(...)),
/// and there is no owner's residual. Blocks and throws as `allreduce`.
void reduce_scatter(Transport& transport, ConstValueSpan input, ValueSpan shard,
                    const CollectiveOptions& options = {}, StreamView stream = {});

/// Gathers every rank's `shard` in rank order to `output` (ranks · shard.count() values). All ranks
/// decode the same bits. One quantisation. If the codec has "+ef", `state.residual` has
/// shard.count() values. Blocks and throws as `allreduce`.
void allgather(Transport& transport, ConstValueSpan shard, ValueSpan output,
               const CollectiveOptions& options = {}, StreamView stream = {});

/// Sends the root's `values` to all ranks. The root also decodes its values, so all ranks have the
/// same bits. One quantisation. `root` is a rank, equal on all ranks. Throws as `allreduce`, and
/// InvalidArgumentError for "+ef": a broadcast and a scatter have no residual.
void broadcast(Transport& transport, ValueSpan values, int root = 0,
               const CollectiveOptions& options = {.codec = "none"}, StreamView stream = {});

/// Reduces `input` to the root's `output` (input.count() values; ignored on other ranks; may be the
/// input). Uses two-shot with the bits, residuals and feedback of `allreduce`. A sum of long f32
/// with a lossless codec goes along a chain of ranks if the algorithm is kAuto and the chain is
/// faster. The bits of a chain depend on the root, and its statistics report kOneShot. Throws as
/// `allreduce`, and InvalidArgumentError for a codec without `reduce` (topk) and for an invalid
/// root.
void reduce(Transport& transport, ConstValueSpan input, ValueSpan output, int root = 0,
            const CollectiveOptions& options = {}, StreamView stream = {});

/// Gathers every rank's `shard` to the root's `output` (ranks · shard.count() values; ignored on
/// other ranks). Quantises, blocks and throws as `allgather`, and throws InvalidArgumentError for
/// an invalid root.
void gather(Transport& transport, ConstValueSpan shard, ValueSpan output, int root = 0,
            const CollectiveOptions& options = {}, StreamView stream = {});

/// Sends the root's values from r · shard.count() on to the `shard` of rank r. The root also
/// decodes its own shard. `input` (ranks · shard.count() values) is ignored on other ranks. Throws
/// as `broadcast`.
void scatter(Transport& transport, ConstValueSpan input, ValueSpan shard, int root = 0,
             const CollectiveOptions& options = {.codec = "none"}, StreamView stream = {});

/// Rows to each rank and from each rank, in rank order. Empty: equal numbers of rows.
struct Splits {
  std::span<const std::size_t> sent = {};      ///< rows for each rank
  std::span<const std::size_t> received = {};  ///< rows from each rank
};

/// Exchanges rows of `columns` values. The first sent[0] rows of `input` go to rank 0, the next
/// sent[1] rows to rank 1, and so on. `output`, which must not overlap `input`, receives
/// received[r] rows from rank r, in rank order. A rank also encodes and decodes the rows for
/// itself. One quantisation.
///
/// Each row starts a block of the codec and does not depend on other rows. Random numbers depend on
/// a row's position. If a single row would not become shorter, all rows for one rank are encoded
/// together. On hosts (kHierarchical) or on a grid, ranks forward rows and first exchange the
/// counts. All calls except captured calls wait for the counts.
///
/// Blocks and throws as `allreduce`. Throws InvalidArgumentError for "+ef", and for splits that do
/// not match the spans. If the splits of two ranks differ, both ranks get a WireError or
/// TransportError, and nothing changes; over NCCL, at the deadline.
void all_to_all(Transport& transport, ConstValueSpan input, ValueSpan output, std::size_t columns,
                const Splits& splits = {}, const CollectiveOptions& options = {},
                StreamView stream = {});

/// Returns the number of values that `rank` owns in a two-shot allreduce of `count` values. Let U =
/// ceil(count / unit) be the number of units; part s is the units [⌊s·U/ranks⌋, ⌊(s+1)·U/ranks⌋).
/// Rank (s + parameter) mod ranks owns part s. On a grid, the result is the sum over the
/// dimensions: the parts owned after each dimension are stored one after the other. Here and below,
/// `unit` is CodecTraits::unit in values and `error_growth` is the option. Throws
/// InvalidArgumentError for an invalid rank. Thread-safe, like the functions below.
std::size_t owned_count(std::size_t count, int rank, int ranks, std::uint32_t parameter = 0,
                        std::size_t unit = CodecTraits{}.unit, std::span<const int> dims = {},
                        double error_growth = kDefaultErrorGrowth);

/// Returns the number of values that `rank` encodes for other hosts in a hierarchical allreduce,
/// and (owned_count) the number of owned values if this exchange is two-shot. hosts[r] is the host
/// of rank r. The smallest host has L ranks. A rank's local rank is its index on its host. Local
/// rank j < L encodes the values that rank j of L ranks owns. The hosts' ranks with local rank j,
/// in rank order, own parts of these values by the rule above. The result is 0 for local ranks from
/// L on, and on a single host. Throws InvalidArgumentError for an invalid rank.
std::size_t encoded_count(std::size_t count, int rank, std::span<const int> hosts,
                          std::uint32_t parameter = 0, std::size_t unit = CodecTraits{}.unit);
/// See `encoded_count`.
std::size_t owned_count(std::size_t count, int rank, std::span<const int> hosts,
                        std::uint32_t parameter = 0, std::size_t unit = CodecTraits{}.unit,
                        double error_growth = kDefaultErrorGrowth);

/// Returns the number of values that each rank encodes for other hosts in a hierarchical
/// reduce_scatter of `count` values. If every host has m ranks, the result is count / m: the shards
/// of the ranks with the same local rank, in rank order. The result is 0 on a single host, and
/// `count` if hosts have unequal numbers of ranks or if every host has one rank.
std::size_t scattered_count(std::size_t count, std::span<const int> hosts);

}  // namespace tersor
