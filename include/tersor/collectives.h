// Collectives that carry encoded bytes: codec and transport meet here and nowhere else.
// docs/algorithms.md says how each algorithm works and what its error is.
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

/// How the ranks exchange what the codec yields.
enum class Algorithm : std::uint8_t {
  kAuto,     ///< native where the codec's values add on the wire; else by codec, count and ranks
  kNative,   ///< the transport adds bare values (none, bf16; of f16 as f32)
  kTwoShot,  ///< shards to their owners, reduced there, then all-gather: two quantisations
  kOneShot,  ///< all-gather of payloads, every rank adds all: one quantisation
  /// Ranks of one host first, uncompressed; then between hosts by the codec, as kAuto goes; then
  /// back. On one host a native sum; with one rank a host as kAuto. Of reduce_scatter, allgather
  /// and all_to_all too, on hosts of equally many ranks: others that the transport found go as
  /// kAuto (CollectiveStatistics::algorithm says so), others that were given are an
  /// InvalidArgument.
  kHierarchical,
};

/// "auto", "native", "two-shot", "one-shot" or "hierarchical".
std::string_view algorithm_name(Algorithm algorithm);
/// The algorithm of a name. Throws InvalidArgument that lists the names.
Algorithm parse_algorithm(std::string_view name);

/// What error feedback keeps between calls: the caller's memory, zero at first, as it stands after
/// the last step. All of one dtype, f32 or bf16. On a device all of it, `words` too, lies there.
struct CollectiveState {
  /// As many values as this rank encodes; hierarchical: encoded_count(...) of an allreduce,
  /// scattered_count(...) of a reduce_scatter.
  ValueSpan residual;
  ValueSpan owner_residual;     ///< owned_count(...) values; needed by two-shot only
  StateWords* words = nullptr;  ///< step and factors; the step is advanced by each call
};

/// What one call did. Bytes are the transport's own count. On a device, where the call only queues,
/// `seconds` is what queueing took, other seconds and overflows (see StateWords) are 0.
struct CollectiveStatistics {
  Algorithm algorithm = Algorithm::kAuto;  ///< the one that was chosen
  std::size_t chunks = 0;
  std::uint64_t gradient_bytes = 0;
  std::uint64_t sent_bytes = 0;
  double encode_seconds = 0;  ///< reduce included
  double decode_seconds = 0;
  double wire_seconds = 0;  ///< in which at least one message was under way
  double seconds = 0;
  std::uint64_t overflows = 0;
};

/// Plans and buffers that calls with equal arguments use again: with one, a second call allocates
/// no buffer. Keeps the splits of a hierarchical collective too, and so goes before its transport.
/// Not for two calls at once. On a device buffers are freed only when it has nothing more to do, so
/// calls without a workspace wait for it; and captured calls need one that outlives their graph.
class CollectiveWorkspace {
 public:
  CollectiveWorkspace();
  ~CollectiveWorkspace();
  CollectiveWorkspace(CollectiveWorkspace&&) noexcept;
  CollectiveWorkspace& operator=(CollectiveWorkspace&&) noexcept;

  struct Cache;
  Cache& cache() { return *cache_; }

 private:
  std::unique_ptr<Cache> cache_;
};

/// How many times the squared error of one dimension a grid of three has.
inline constexpr double kDefaultErrorGrowth = 2;

/// Options of all collectives. Ranks must pass equal ones (but for state, threads and outputs).
struct CollectiveOptions {
  std::string codec = "bf16";             ///< a spec; "+ef" needs `state`, "auto" `tuner`
  Reduction reduction = Reduction::kSum;  ///< of allreduce, reduce_scatter and reduce
  /// Of allreduce; kHierarchical of others too. Any but kAuto keeps a reduce to two-shot.
  Algorithm algorithm = Algorithm::kAuto;
  /// Hierarchical: the host of each rank, equal numbers share one. Empty: Transport::hosts().
  std::span<const int> hosts = {};
  std::string host_codec = "none";  ///< hierarchical: within a host; none or bf16
  /// Of a two-shot allreduce, 1 to 3: ranks exchange in one dimension after the other, which sends
  /// sum(dims - 1) messages twice in place of ranks - 1, and quantises once more for each
  /// dimension. Their product is at most the ranks and at least 9/10 of them. Empty: as few as have
  /// at most 32 ranks each, within the next bound. Of reduce_scatter (without "+ef", as many
  /// quantisations as dimensions), allgather and all_to_all (one quantisation; all_to_all at most
  /// two dimensions) too: their product is the ranks; empty: one dimension.
  std::span<const int> dims = {};
  /// Of a two-shot allreduce, at least 1: how many times the squared error of one dimension d
  /// dimensions may have, which is (1 + d) / 2. With codec "auto" AutoOptions has it.
  double error_growth = kDefaultErrorGrowth;
  const CollectiveState* state = nullptr;  ///< null: no feedback
  std::uint32_t parameter = 0;             ///< index of the parameter: rotates owners, varies noise
  /// In which order the values of an array of several dimensions lie, by a number of the caller's
  /// own: 0 that of its indices. Ranks whose values lie otherwise have another signature.
  std::uint32_t order = 0;
  std::uint64_t seed = 0;  ///< of stochastic rounding
  /// Of stochastic rounding, where there is no state; a graph keeps the number of its capture.
  std::uint32_t step = 0;
  /// Values, rounded up to the codec's units; 0: as the transport has it (TransportTraits).
  std::size_t chunk_count = 0;
  Checksum checksum = Checksum::kOn;
  std::chrono::milliseconds timeout = kDefaultTimeout;
  Threads* threads = nullptr;                  ///< null: the calling thread alone
  CollectiveWorkspace* workspace = nullptr;    ///< null: buffers live for one call
  CollectiveStatistics* statistics = nullptr;  ///< filled where given
  Tuner* tuner = nullptr;                      ///< who chooses, where `codec` is "auto" (auto.h)
};

/// Sum or mean over ranks, in place, of values that the transport can take (f32, bf16, f16; any
/// count). Every rank ends with the same bits. One rank: nothing changes.
/// Host values: blocks the calling thread. Device values: queued on `stream`, whatever is queued
/// there later finds the result; a transport that queues (NCCL) does not wait on the host but in
/// the first of equal calls, one over hosts (MPI) until the result is queued. Damage and deadlines
/// are then thrown by the next call on the transport, and the values are NaN, never a wrong sum.
/// Throws InvalidArgument (nothing changed; also if spans or the state overlap, unless input and
/// output are one span or a shard lies at its rank's place in the whole), TransportError, WireError
/// or CudaError (values undefined, transport poisoned).
void allreduce(Transport& transport, ValueSpan gradient, const CollectiveOptions& options = {},
               StreamView stream = {});

/// As above: sum or mean over ranks of `input` (ranks equal shards, rank r's at r · shard.count()),
/// of which this rank's shard is written to `shard`. One quantisation. With "+ef": `state.residual`
/// has input.count() values, hierarchical scattered_count(...); there is no owner's residual.
void reduce_scatter(Transport& transport, ConstValueSpan input, ValueSpan shard,
                    const CollectiveOptions& options = {}, StreamView stream = {});

/// As above: every rank's `shard`, decoded alike on all ranks, in rank order in `output` (ranks ·
/// shard.count() values). One quantisation; "+ef": `state.residual` has shard.count() values.
void allgather(Transport& transport, ConstValueSpan shard, ValueSpan output,
               const CollectiveOptions& options = {}, StreamView stream = {});

/// As above: `values` of the root on all ranks. The root ends with what the others decode, so that
/// all hold the same bits. One quantisation; "+ef" is an InvalidArgument, here and in `scatter`: a
/// residual of what? `root` is a rank, equal on all; else InvalidArgument, here and below.
void broadcast(Transport& transport, ValueSpan values, int root = 0,
               const CollectiveOptions& options = {.codec = "none"}, StreamView stream = {});

/// As `allreduce` by two-shot, with its bits, residuals and feedback; but only the root's `output`
/// (input.count() values, on other ranks not looked at; it may be the input) gets the sum. A sum of
/// long f32 that the codec loses nothing of goes along a chain of ranks, where that is quicker and
/// the algorithm is kAuto: other bits, which depend on the root; its statistics say kOneShot.
/// InvalidArgument for a codec that cannot go so (topk).
void reduce(Transport& transport, ConstValueSpan input, ValueSpan output, int root = 0,
            const CollectiveOptions& options = {}, StreamView stream = {});

/// As `allgather`; but only the root's `output` (ranks · shard.count() values, on other ranks not
/// looked at) gets the shards.
void gather(Transport& transport, ConstValueSpan shard, ValueSpan output, int root = 0,
            const CollectiveOptions& options = {}, StreamView stream = {});

/// As above: rank r gets the root's values from r · shard.count() on, as they are decoded, in
/// `shard`; the root's own too. `input` (ranks · shard.count() values) is looked at on the root
/// only.
void scatter(Transport& transport, ConstValueSpan input, ValueSpan shard, int root = 0,
             const CollectiveOptions& options = {.codec = "none"}, StreamView stream = {});

/// Rows that go to each rank and come from each, in the order of ranks; empty: equally many.
struct Splits {
  std::span<const std::size_t> sent = {}, received = {};
};

/// As above: of `input`, rows of `columns` values, the first sent[0] go to rank 0, the next sent[1]
/// to rank 1, …; `output`, which overlaps it nowhere, gets received[r] rows of rank r, in the order
/// of ranks; rows for the rank itself are encoded and decoded as all are. One quantisation. A row
/// begins a block of the codec and depends on no other row, but for random numbers, which belong to
/// its place. Rows for one rank are encoded together if a row alone would not become shorter. "+ef"
/// and splits that are not the spans' rows are InvalidArgument. Ranks whose splits differ get an
/// error (WireError or TransportError), nothing changed; over NCCL at the deadline. By hosts or on
/// a grid a rank that is told how many passes rows on: calls but captured ones wait for that.
void all_to_all(Transport& transport, ConstValueSpan input, ValueSpan output, std::size_t columns,
                const Splits& splits = {}, const CollectiveOptions& options = {},
                StreamView stream = {});

/// How many values of a parameter's gradient `rank` owns in a two-shot allreduce: part s of
/// U = ceil(count / unit) units is [⌊s·U/ranks⌋, ⌊(s+1)·U/ranks⌋) units, owned by rank
/// (s + parameter) mod ranks; on a grid what it owns after each of its dimensions, one behind the
/// other. `unit` is that of the codec (CodecTraits::unit), here and below; `error_growth` that of
/// the options.
std::size_t owned_count(std::size_t count, int rank, int ranks, std::uint32_t parameter = 0,
                        std::size_t unit = CodecTraits{}.unit, std::span<const int> dims = {},
                        double error_growth = kDefaultErrorGrowth);

/// Of a hierarchical allreduce: how many values `rank` encodes for other hosts, and how many it
/// owns there where that exchange is two-shot. hosts[r] is the host of rank r. With L ranks on the
/// smallest host, the rank of place j < L on its host encodes the values that rank j of L owns; the
/// hosts' ranks of place j, in the order of ranks, own parts of these by the rule above. 0 on a
/// rank of place L or more, and on a single host.
/// Throw InvalidArgument where there is no such rank.
std::size_t encoded_count(std::size_t count, int rank, std::span<const int> hosts,
                          std::uint32_t parameter = 0, std::size_t unit = CodecTraits{}.unit);
std::size_t owned_count(std::size_t count, int rank, std::span<const int> hosts,
                        std::uint32_t parameter = 0, std::size_t unit = CodecTraits{}.unit,
                        double error_growth = kDefaultErrorGrowth);

/// Of a hierarchical reduce_scatter of `count` values: how many each rank encodes for other hosts.
/// With m ranks on every host count / m, namely the shards of the ranks of its own place on their
/// hosts, in the order of ranks; 0 on a single host, and all of them where hosts have unequal
/// numbers of ranks or one each.
std::size_t scattered_count(std::size_t count, std::span<const int> hosts);

}  // namespace tersor
