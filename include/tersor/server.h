// A parameter server: workers push encoded gradients and pull encoded weights. Bounded staleness
// limits the lead of a worker over the slowest worker. docs/systems/parameter-server.md lists cases
// in which to avoid a server.
#pragma once

#include <tersor/agreement.h>
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

/// One parameter's weights on a server, and the gradient of an update. Both spans have equal
/// length.
struct UpdatePart {
  std::size_t parameter = 0;        ///< index of the parameter
  std::span<float> weights;         ///< the weights, updated in place
  std::span<const float> gradient;  ///< the gradient of the update
};

/// Updates the weights of all parts in place; parts without values are omitted. Called by one
/// thread at a time. An update must not call its server. An exception of an update ends the server:
/// all waiting calls and all later calls throw it.
using Update = std::function<void(std::span<const UpdatePart>)>;

/// Returns SGD with momentum: v ← momentum · v + g, then w ← w - rate · v. v is 0 at first.
Update sgd_update(float rate, float momentum = 0.0f);

/// A value of ServerOptions::staleness: no worker waits for another worker.
inline constexpr std::uint32_t kNoBound = std::numeric_limits<std::uint32_t>::max();

/// Selects whether a server rejects pushes that decode to a NaN or an infinity.
enum class FiniteCheck : std::uint8_t { kOn, kOff };

/// Options of servers and workers, equal on all of them.
struct ServerOptions {
  /// The codec of gradients. Workers keep the residuals.
  std::string push = "int8+ef";
  /// The codec of weights, without "+ef", because each pull sends all weights.
  std::string pull = "int8";
  /// The pull of a worker at clock c waits until the slowest worker is at least at c - staleness.
  /// The value 0 is bulk synchronous (BSP), kNoBound asynchronous (ASP). Above 0, pushes do not
  /// wait.
  std::uint32_t staleness = 0;
  /// The meaning of pushes at one clock: the mean over the joined workers, or the sum.
  Reduction reduction = Reduction::kMean;
  /// The server waits until these workers have joined or are gone.
  std::vector<int> workers = {};
  Checksum checksum = Checksum::kOn;  ///< True if frames have a checksum
  /// A hash of names and shapes, because the protocol compares only lengths.
  std::uint64_t model = 0;
  /// Used by the server; workers may have another value.
  FiniteCheck require_finite = FiniteCheck::kOn;
};

/// Statistics of one server.
struct ServerStatistics {
  std::uint64_t pushes = 0;        ///< applied pushes
  std::uint64_t pulls = 0;         ///< answered pulls
  std::uint64_t refused = 0;       ///< rejected calls of workers
  std::uint64_t pushed_bytes = 0;  ///< bytes of pushes
  std::uint64_t pulled_bytes = 0;  ///< bytes of pulls
  /// Workers that left without notice, in the order of loss.
  std::vector<int> lost;
};

/// One server's part of the weights and its protocol state. The class knows no transport.
/// Thread-safe.
///
/// At staleness 0, the server stores a clock's pushes until all workers have pushed. One call then
/// decodes all pushes in the order of workers, so the bits equal a one-shot allreduce. Otherwise
/// each push updates the weights at once.
class ParameterShard {
 public:
  /// `parameters` holds all initial weights, f32 on the host; the constructor copies this server's
  /// part. `server` is the index of this server among `servers`. Throws InvalidArgumentError for a
  /// codec with several rounds, and for "+ef" in `pull`.
  ParameterShard(std::span<const ConstValueSpan> parameters, Update update,
                 const ServerOptions& options = {}, int server = 0, int servers = 1);
  ~ParameterShard();
  ParameterShard(const ParameterShard&) = delete;
  ParameterShard& operator=(const ParameterShard&) = delete;

  /// Returns a hash of the parameters, codecs and staleness bound. Workers must have the same hash.
  std::uint64_t signature() const;
  /// The options behind the signature.
  const Agreement& agreement() const;

  /// Adds a worker; other workers then wait for it. Returns its first clock, the clock of the
  /// slowest worker. Throws InvalidArgumentError if the worker has already joined.
  std::uint32_t join(int worker);
  /// Removes a worker; no worker waits for it any longer. Pass `lost` = true if the worker left
  /// without notice.
  void leave(int worker, bool lost = false);

  /// Applies or stores a worker's gradient for its next clock. Throws InvalidArgumentError for
  /// another clock, from a worker that has not joined, for a third push while two pushes wait, and
  /// for values that are not finite (see `require_finite`). Throws WireError for a wrong frame.
  /// After an error, nothing was added.
  void push(int worker, std::uint32_t clock, ConstByteSpan frame);
  /// Returns the number of this worker's pushes that are not yet applied.
  std::size_t waiting(int worker) const;

  /// True if all other workers are close enough for a worker at `clock` to pull.
  bool may_pull(int worker, std::uint32_t clock) const;
  /// Encodes the weights to `frame`, 16-byte aligned memory of `pull_capacity` bytes. Returns the
  /// bytes in use. Throws InvalidArgumentError if may_pull(worker, clock) is false.
  std::size_t pull(int worker, std::uint32_t clock, ByteSpan frame);
  /// Returns the maximum bytes of a pull's frame.
  std::size_t pull_capacity() const;
  /// Returns the maximum bytes of a push's frame.
  std::size_t push_capacity() const;

  /// Removes as lost each slowest worker that has made no call after `since` while another worker
  /// waits. Returns the removed workers.
  std::vector<int> leave_out_silent(Clock::time_point since);

  /// Returns the workers of ServerOptions::workers that have not joined yet.
  std::vector<int> missing() const;
  /// has_begun: true if all workers of ServerOptions::workers have joined or are gone. is_over:
  /// true if all workers that had joined have left.
  bool has_begun() const;
  /// See `has_begun`.
  bool is_over() const;

  /// part: returns the range of a parameter's values on this server. weights: returns a copy of
  /// these values, f32.
  Segment part(std::size_t parameter) const;
  /// See `part`.
  std::vector<float> weights(std::size_t parameter) const;
  /// Returns the statistics so far.
  ServerStatistics statistics() const;

  /// Sets a callback for pushes and departures that let other workers continue. The callback runs
  /// on the thread of the push or departure.
  void on_progress(std::function<void()> call);
  /// Blocks until `done` returns true or `until` is reached. Evaluates `done` again after every
  /// change.
  void wait(const std::function<bool()>& done, Clock::time_point until) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// A worker's encoder and decoder for one of several servers, without a transport. One thread at a
/// time may call the functions.
class WorkerFrames {
 public:
  /// `counts` are the values of each parameter. `server` is the index of the server among
  /// `servers`. Throws InvalidArgumentError as ParameterShard does.
  WorkerFrames(std::span<const std::size_t> counts, const ServerOptions& options, int worker,
               int server = 0, int servers = 1);
  ~WorkerFrames();
  WorkerFrames(WorkerFrames&&) noexcept;

  /// Returns the signature of a ParameterShard with the same model and options.
  std::uint64_t signature() const;
  /// The options behind the signature.
  const Agreement& agreement() const;
  /// Returns the maximum bytes of a push's frame.
  std::size_t push_capacity() const;
  /// Returns the maximum bytes of a pull's frame.
  std::size_t pull_capacity() const;

  /// Encodes the server's part of `gradients` (f32, all parameters) for this worker's next clock.
  /// `frame` is 16-byte aligned memory of `push_capacity` bytes. Keeps the residual. Returns the
  /// bytes in use.
  std::size_t encode(std::span<const ConstValueSpan> gradients, std::uint32_t clock,
                     ByteSpan frame);
  /// Decodes weights into the server's part of `weights` (f32, all parameters). Throws WireError
  /// for a wrong frame.
  void decode(ConstByteSpan frame, std::span<const ValueSpan> weights);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Answers workers on the calling thread until all have left or are lost. `isolated_channel` is
/// this server's own isolated channel (Transport::isolated_channel), made on all ranks. `timeout`
/// is the timeout of the clients.
///
/// The server's deadlines are shorter, so one missing worker does not end the other workers. A
/// worker without a message for `straggler_timeout` (0: half of `timeout`), while another worker
/// waits, is lost. Throws InvalidArgumentError for a `straggler_timeout` of `timeout` or more.
/// Throws TransportError if workers did not join within half of `timeout`. Rethrows the exception
/// of an update.
void serve(Transport& isolated_channel, ParameterShard& shard,
           std::chrono::milliseconds timeout = kDefaultTimeout,
           std::chrono::milliseconds straggler_timeout = {});

/// The connection of a worker to one server.
struct ServerAt {
  Transport* isolated_channel = nullptr;  ///< the isolated channel of this server
  int rank = 0;                           ///< rank of the server
  /// Set if this rank is also the server.
  ParameterShard* own = nullptr;
};

/// Traffic of a worker. A server on the same rank causes no traffic.
struct ClientStatistics {
  std::uint64_t sent_bytes = 0;      ///< bytes of pushes
  std::uint64_t received_bytes = 0;  ///< bytes of pulls
};

/// A worker of a parameter server. After an error other than InvalidArgumentError, all later calls
/// except leave() throw the same error. One thread at a time may call a client.
class ParameterClient {
 public:
  /// Joins all servers. `counts` are the values of each parameter. Throws
  /// TransportError if a server has another model or other options (TransportError::disagreement),
  /// and if a server is gone.
  ParameterClient(std::vector<ServerAt> servers, std::span<const std::size_t> counts,
                  const ServerOptions& options = {},
                  std::chrono::milliseconds timeout = kDefaultTimeout);
  ~ParameterClient();
  ParameterClient(const ParameterClient&) = delete;
  ParameterClient& operator=(const ParameterClient&) = delete;

  /// Blocks until no other worker is too far behind, and reads the weights of this worker's clock
  /// to `weights`, f32.
  void pull(std::span<const ValueSpan> weights);
  /// Sends `gradients` and increments the clock. Returns before the gradients arrive; at most two
  /// pushes are unanswered. Throws InvalidArgumentError for a gradient that is not finite, before
  /// anything is sent. Throws InvalidArgumentError with the server's reason if a server rejected a
  /// push.
  void push(std::span<const ConstValueSpan> gradients);
  /// Returns the worker's clock: the number of pushes, plus the first clock.
  std::uint32_t clock() const;
  /// Blocks until the servers have applied all pushes of this worker.
  void flush();
  /// Returns the traffic so far.
  ClientStatistics statistics() const;
  /// Waits for all pushes and leaves. No server waits for this worker any longer.
  void leave();
  /// Leaves without waiting for pushes, for example after an exception. Servers that do not receive
  /// are left after a second.
  void abandon() noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tersor
