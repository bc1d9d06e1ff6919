// A parameter server: workers push encoded gradients and pull encoded weights, and none is ahead of
// the slowest by more than a bound. docs/server.md says when not to use it.
#pragma once

#include <tersor/codec.h>
#include <tersor/modes.h>
#include <tersor/span.h>
#include <tersor/transport.h>
#include <tersor/wire.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace tersor {

/// What a server has of a parameter, and by what it moves: f32, of equal counts.
struct UpdatePart {
  std::size_t parameter = 0;
  std::span<float> weights;
  std::span<const float> gradient;
};

/// Moves the weights of all its parts, those of no values left out; on one thread at a time. It
/// asks its server nothing. What it throws ends the server: all who wait, and all calls since, get
/// it.
using Update = std::function<void(std::span<const UpdatePart>)>;

/// w ← w - rate · v with v ← momentum · v + g, from zeros on.
Update sgd_update(float rate, float momentum = 0.0f);

/// Of ServerOptions::staleness: nobody waits for anybody.
inline constexpr std::uint32_t kNoBound = std::numeric_limits<std::uint32_t>::max();

/// Whether a server refuses a push that decodes to a NaN or an infinity.
enum class FiniteCheck : std::uint8_t { kOn, kOff };

/// Equal on all servers and workers.
struct ServerOptions {
  std::string push = "int8+ef";  ///< of gradients; a worker keeps what its codec leaves out
  std::string pull = "int8";     ///< of weights, whole each time: without "+ef"
  /// A worker at clock c goes on while the slowest is at c - staleness: 0 is BSP, kNoBound ASP.
  std::uint32_t staleness = 0;
  /// Of a push: the mean over the workers that have joined, or the sum.
  Reduction reduction = Reduction::kMean;
  std::vector<int> workers = {};  ///< before these have joined, or are gone, nothing moves
  Checksum checksum = Checksum::kOn;
  std::uint64_t model = 0;  ///< a hash of what lengths do not tell: names, shapes
  FiniteCheck require_finite = FiniteCheck::kOn;  ///< by the server; may differ on workers
};

/// What a server has seen.
struct ServerStatistics {
  std::uint64_t pushes = 0;   ///< that moved the weights
  std::uint64_t pulls = 0;    ///< that were answered
  std::uint64_t refused = 0;  ///< calls of workers, nothing of which was taken
  std::uint64_t pushed_bytes = 0;
  std::uint64_t pulled_bytes = 0;
  std::vector<int> lost;  ///< workers that went without a word, in their order
};

/// What one of several servers has of the weights, and what it does with them: a state machine that
/// knows no transport. May be called from any thread.
///
/// At staleness 0 the pushes of a clock are kept until all workers have made theirs, and decoded by
/// one call in the order of the workers, so that the bits are those of an allreduce by one-shot.
/// Else each moves the weights as it comes.
class ParameterShard {
 public:
  /// `parameters`: the weights of all, f32 on the host, which this server's part is copied from;
  /// `server` of `servers`. Throws InvalidArgument for a codec that needs more than a frame, and
  /// for
  /// "+ef" in `pull`.
  ParameterShard(std::span<const ConstValueSpan> parameters, Update update,
                 const ServerOptions& options = {}, int server = 0, int servers = 1);
  ~ParameterShard();
  ParameterShard(const ParameterShard&) = delete;
  ParameterShard& operator=(const ParameterShard&) = delete;

  /// Of the parameters, codecs and bound: what workers must say that they have, too.
  std::uint64_t signature() const;

  /// From now on the others wait for it. Returns the clock that it begins with: the slowest one's.
  /// Throws InvalidArgument where it has joined already.
  std::uint32_t join(int worker);
  /// Nobody waits for it any more. `lost`: it went without a word.
  void leave(int worker, bool lost = false);

  /// A gradient, of this worker's next clock. Throws InvalidArgument for another clock, from who
  /// has not joined, for a third push while two pushes wait, and (see `require_finite`) for values
  /// that are not finite. Throws WireError for a frame of something else. Nothing is added then.
  void push(int worker, std::uint32_t clock, ConstByteSpan frame);
  /// Pushes of this worker by which the weights have not moved yet.
  std::size_t waiting(int worker) const;

  /// Whether all others are near enough for the weights that a worker at `clock` computes with.
  bool may_pull(int worker, std::uint32_t clock) const;
  /// The weights, encoded, to 16-byte aligned memory of `pull_capacity` bytes. Returns true bytes.
  /// Throws InvalidArgument where it may not yet.
  std::size_t pull(int worker, std::uint32_t clock, ByteSpan frame);
  std::size_t pull_capacity() const;
  std::size_t push_capacity() const;

  /// Leaves out, as lost, each slowest worker that has called nothing since `since` while another
  /// worker waits. Returns the workers that were left out.
  std::vector<int> leave_out_silent(Clock::time_point since);

  /// The wanted workers that have not joined yet.
  std::vector<int> missing() const;
  /// Whether all workers that are wanted have come, and whether nobody is left of who came.
  bool has_begun() const;
  bool is_over() const;

  /// Which values of a parameter are its part, and these, f32; a copy.
  Segment part(std::size_t parameter) const;
  std::vector<float> weights(std::size_t parameter) const;
  ServerStatistics statistics() const;

  /// Called, on the thread of whoever brought it, when a push or a leaving let others go on.
  void on_progress(std::function<void()> call);
  /// Blocks until `done` is true; it is asked again whenever something came.
  void wait(const std::function<bool()>& done, Clock::time_point until) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// What a worker sends to one of several servers, and what it makes of what comes, without a
/// transport. On one thread at a time.
class WorkerFrames {
 public:
  /// `counts`: values of each parameter. Throws InvalidArgument as ParameterShard does.
  WorkerFrames(std::span<const std::size_t> counts, const ServerOptions& options, int worker,
               int server = 0, int servers = 1);
  ~WorkerFrames();
  WorkerFrames(WorkerFrames&&) noexcept;

  /// ParameterShard's own, of the same model and options.
  std::uint64_t signature() const;
  std::size_t push_capacity() const;
  std::size_t pull_capacity() const;

  /// The server's part of gradients of all parameters, f32, of this worker's next clock, to 16-byte
  /// aligned memory of `push_capacity` bytes. Keeps what the codec leaves out. Returns true bytes.
  std::size_t encode(std::span<const ConstValueSpan> gradients, std::uint32_t clock,
                     ByteSpan frame);
  /// Into the server's part of all weights. Throws WireError for a frame of something else.
  void decode(ConstByteSpan frame, std::span<const ValueSpan> weights);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Answers workers until all of them have left or are lost, on the thread that calls it.
/// `lifeline`: one of this server's own (Transport::lifeline), which all ranks made. `timeout`:
/// that of the clients. The server waits for less, so that one missing worker does not end the
/// others: a worker that sends nothing for `straggler_timeout` (0: half of `timeout`) while another
/// worker waits is lost. Throws InvalidArgument for a `straggler_timeout` that is not below
/// `timeout`, TransportError if workers did not join within half of `timeout`, and what an update
/// threw.
void serve(Transport& lifeline, ParameterShard& shard,
           std::chrono::milliseconds timeout = kDefaultTimeout,
           std::chrono::milliseconds straggler_timeout = {});

/// Where a worker finds a server.
struct ServerAt {
  Transport* lifeline = nullptr;  ///< that server's
  int rank = 0;                   ///< of the server
  ParameterShard* own = nullptr;  ///< where this rank is the server, too
};

/// What a worker has sent, and what came; of a server on its own rank nothing.
struct ClientStatistics {
  std::uint64_t sent_bytes = 0;
  std::uint64_t received_bytes = 0;
};

/// A worker. After an error that is not of its arguments all later calls but leave() throw that.
class ParameterClient {
 public:
  /// Joins all servers. `counts`: values of each parameter. Throws InvalidArgument where a server
  /// has another model or other options, TransportError where one is gone.
  ParameterClient(std::vector<ServerAt> servers, std::span<const std::size_t> counts,
                  const ServerOptions& options = {},
                  std::chrono::milliseconds timeout = kDefaultTimeout);
  ~ParameterClient();
  ParameterClient(const ParameterClient&) = delete;
  ParameterClient& operator=(const ParameterClient&) = delete;

  /// The weights of this worker's clock, f32, as soon as no other worker is too far behind.
  void pull(std::span<const ValueSpan> weights);
  /// Sends a gradient, and counts the clock on. Returns before it has arrived; at most two pushes
  /// are unanswered. Throws InvalidArgument for a gradient that is not finite, before anything is
  /// sent, and where a server refused one, and why.
  void push(std::span<const ConstValueSpan> gradients);
  std::uint32_t clock() const;
  /// Waits until the servers' weights have moved by all that it has pushed.
  void flush();
  ClientStatistics statistics() const;
  /// Waits for what it has pushed, and leaves: no server waits for it any more.
  void leave();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tersor
