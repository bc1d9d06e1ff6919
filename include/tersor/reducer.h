// The GradientReducer, which a trainer links. Tersor sends gradients while the trainer computes.
#pragma once

#include <tersor/auto.h>
#include <tersor/collectives.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tersor {

/// Assigns `codec` to parameters whose name matches `pattern` (shell style: * and ?). The codec
/// "auto" starts with the fastest codec predicted by a Tuner for the parameters of this rule and
/// their dtype, and then uses the codecs with the fastest steps.
///
/// Several rules with one pattern are a schedule: each rule applies from its `from_step` on. If one
/// rule of a schedule has "+ef", all use feedback, so no residual is lost when the codec changes. A
/// schedule must not contain "auto".
struct ReducerRule {
  std::string pattern;          ///< shell pattern of names
  std::string codec;            ///< a spec, or "auto"
  std::uint32_t from_step = 0;  ///< completed steps, including the steps before a loaded state
};

/// The meaning of a parameter that is not ready at the end of a step: an error, or a parameter
/// without a gradient. Such a parameter contributes zeros and keeps its residual.
enum class MissingGradient : std::uint8_t { kError, kInactive };

/// The order in which gradients are sent.
enum class SendingOrder : std::uint8_t {
  /// The order in which rank 0's gradients became ready in the first step. This step is sent at its
  /// end.
  kLearned,
  /// The order of the `ready` calls, from the first step on, which must be the same on all ranks. A
  /// parameter that is not ready takes part on no rank and keeps its residual. Parameters of one
  /// `ready` call share messages only with each other.
  kReadyOrder,
  kOfReady [[deprecated("use kReadyOrder")]] = kReadyOrder,  ///< former name
};

/// The contribution of a ready parameter: a gradient, nothing on this rank, or nothing on any rank.
/// A rank without a contribution sends zeros, keeps its residual and receives the result.
enum class Contribution : std::uint8_t {
  kGradient,
  kNone,  ///< nothing on this rank; `ready` clears the gradient's memory
  /// Like kNone if all bits of the gradient are 0, e.g. if this rank did not use the parameter. On
  /// a device, where the check would block, like kGradient.
  kGradientUnlessZero,
  /// No rank has a gradient; all ranks must pass this value. The result is zeros, and the
  /// parameter's state does not change. An owner's residual also stays; with kNone, the residual
  /// goes into the result.
  kGloballyUnused,
  kNowhere [[deprecated("use kGloballyUnused")]] = kGloballyUnused,  ///< former name
};

/// Selects whether the reducer keeps the residuals from before the last step for `discard_step`.
/// Then residuals take twice the memory.
enum class Transactional : std::uint8_t { kOff, kOn };
/// The former name of Transactional.
using Transactions [[deprecated("use Transactional")]] = Transactional;

/// Who sends: a thread of the reducer, or the caller inside `ready`, `progress` and `wait`. The
/// caller always sends if TransportTraits::any_thread is false.
enum class ProgressBy : std::uint8_t { kThread, kCaller };

/// Selects whether each step encodes and decodes once more to measure the relative error. This is
/// slow and meant for studies. Refused for a hierarchical reducer, where a rank encodes the sum of
/// its host. Codecs whose ranks share scales are measured as if all ranks had equal gradients.
enum class MeasureError : std::uint8_t { kOff, kOn };

/// Selects whether "auto" tries other codecs than the predicted codec during training. If off, a
/// repeated run makes the same choices. Reducers that learn need the same order of `ready` on all
/// ranks.
enum class AutoLearning : std::uint8_t { kOff, kOn };
/// The former name of AutoLearning.
using Learning [[deprecated("use AutoLearning")]] = AutoLearning;

/// Selects whether the remaining ranks may continue after the loss of a rank. Each step then ends
/// with a commit barrier, and residuals are kept twice, as with Transactional::kOn. Only for
/// all-reduced parameters, over TcpTransport or in process, with the reducer's own Tuner.
enum class Elastic : std::uint8_t { kOff, kOn };

/// Selects whether gradients are sample-weighted means; see GradientReducer::weigh.
enum class Weighted : std::uint8_t { kOff, kOn };
/// The former name of Weighted.
using Weights [[deprecated("use Weighted")]] = Weighted;

/// Options of a GradientReducer. Ranks must pass equal options, except `threads`.
struct ReducerOptions {
  /// The first matching rule applies; a parameter without a matching rule is an error. By default
  /// (empty), all parameters use `codec`. If this codec is lossy, 1-D parameters and parameters
  /// with fewer than 4,096 values use bf16 instead, or stay unchanged if they have 16 bits.
  std::vector<ReducerRule> rules = {};
  std::string codec = "bf16";  ///< a spec, or "auto"
  /// "auto": the candidate specs, as AutoOptions::codecs.
  std::vector<std::string> auto_codecs = {"int8"};
  /// "auto": the costs of the link, if known. Otherwise, the reducer measures the costs.
  std::optional<LinkFigures> auto_link = {};
  Memory memory = Memory::kHost;  ///< "auto": the memory of the gradients
  /// "auto": replaces the reducer's own Tuner. Must outlive the last `add`.
  Tuner* tuner = nullptr;
  AutoLearning auto_learning = AutoLearning::kOn;  ///< trials of "auto"
  Reduction reduction = Reduction::kMean;          ///< sum or mean
  /// For all-reduced parameters; kHierarchical for all parameters.
  Algorithm algorithm = Algorithm::kAuto;
  /// The host number of each rank, as in CollectiveOptions. Empty: Transport::hosts().
  std::vector<int> hosts = {};
  /// The grid of two-shot parameters, as in CollectiveOptions. Not used with host groups.
  std::vector<int> dims = {};
  /// As in CollectiveOptions; also used between hosts.
  double error_growth = kDefaultErrorGrowth;
  /// The codec within a host, none or bf16.
  std::string host_codec = "none";
  /// Bytes of gradient per message; small gradients share a message.
  std::size_t bucket_bytes = std::size_t{1} << 20;
  /// Maximum length of a chunk in values; longer parameters are cut. 0:
  /// TransportTraits::chunk_count.
  std::size_t chunk_count = 0;
  Dtype residual_dtype = Dtype::kF32;                 ///< kF32 or kBf16
  std::uint64_t seed = 0;                             ///< seed of stochastic rounding
  SendingOrder order = SendingOrder::kLearned;        ///< the order of sending
  MissingGradient missing = MissingGradient::kError;  ///< used with SendingOrder::kLearned
  Transactional transactional = Transactional::kOff;  ///< needed by `discard_step`
  ProgressBy progress = ProgressBy::kThread;          ///< who sends
  Elastic elastic = Elastic::kOff;                    ///< continue after lost ranks
  /// Elastic reducer: the minimum number of ranks to continue. If 0 (the default), more than half
  /// of the ranks continue, or exactly half with the lowest rank. After a network split, at most
  /// one side then continues.
  int min_ranks = 0;
  Weighted weighted = Weighted::kOff;                   ///< needs Reduction::kMean
  MeasureError measure_error = MeasureError::kOff;      ///< measure relative errors
  Checksum checksum = Checksum::kOn;                    ///< checksums of frames
  std::chrono::milliseconds timeout = kDefaultTimeout;  ///< time after which a rank is late
  /// Threads of the codecs, in addition to the sending thread.
  unsigned threads = 1;
  /// Device gradients: the stream on which the trainer queues its work.
  StreamView stream = {};
  /// A file for a trace of the newest events in Chrome's format; open it at
  /// https://ui.perfetto.dev. The reducer inserts ".rank<number>" before the file name's extension.
  /// It writes the file in its destructor and in write_trace(). The trace of a device shows only
  /// the times at which gradients became ready, and the waits.
  std::string trace = {};
};

/// The description of a parameter's gradients, for parameters added without a gradient.
struct GradientShape {
  std::size_t count = 0;          ///< number of values
  Dtype dtype = Dtype::kF32;      ///< type of the values
  Memory memory = Memory::kHost;  ///< memory of the values
  /// The shape of the matrix in memory, row by row. A transposed matrix has its columns first.
  std::size_t rows = 0;
  std::size_t columns = 0;  ///< 0: a 1-D parameter
  /// The memory order of the values, as in CollectiveOptions: the same in each step and on all
  /// ranks.
  std::uint32_t order = 0;
  Collective collective = Collective::kAllreduce;  ///< all-reduce or reduce-scatter
  /// Reduce-scatter: the number of values of each rank's shard, at least ceil(count / ranks). 0
  /// means ceil(count / ranks). A step's gradient holds the shards of all ranks one after the
  /// other. Values beyond `count` are padding.
  std::size_t shard_count = 0;
};

/// A handle of one parameter's reduction in the current step. Cheap to copy, valid as long as the
/// reducer exists.
class ReducerHandle {
 public:
  /// True once the parameter's gradient holds the result. Never waits. Throws the error that ended
  /// the exchange.
  bool test() const;
  /// Blocks until this parameter's reduction is done. Throws the error that ended the exchange. The
  /// step must be flushed, or its order must be known: not in a first step that learns the order.
  /// If TransportTraits::queues is true, call `wait` before the flush only with
  /// SendingOrder::kReadyOrder and on all ranks in the same order. Device gradients:
  /// ReducerOptions::stream waits, not the host. The same holds after `test` returned true.
  void wait() const;

 private:
  friend class GradientReducer;
  struct Shared;
  std::shared_ptr<Shared> shared_;
  std::uint32_t parameter_ = 0;
  std::uint32_t step_ = 0;
};

/// A gradient in a call of `ready`.
struct ReadyGradient {
  std::string_view name;  ///< name of the parameter
  ValueSpan gradient;     ///< the gradient
  ValueSpan shard = {};   ///< reduce-scatter: the destination of this rank's shard
  Contribution contribution = Contribution::kGradient;  ///< this rank's contribution
};

/// Statistics of one parameter, or of all parameters. Seconds and bytes are sums since construction
/// or `reset_statistics`, over `steps` steps.
struct ReducerStatistics {
  std::string name;    ///< name of the parameter; "" for all
  std::string codec;   ///< the codec; `reason` says why Tersor chose it
  std::string reason;  ///< reason for the codec
  /// True if "auto" or a schedule chooses the codec. Another run may then use another codec.
  bool codec_may_change = false;
  Algorithm algorithm = Algorithm::kAuto;  ///< the algorithm
  std::uint64_t steps = 0;                 ///< completed steps
  std::uint64_t gradient_bytes = 0;        ///< uncompressed bytes
  std::uint64_t sent_bytes = 0;            ///< bytes that this rank sent
  double encode_seconds = 0;               ///< time of encoding
  double decode_seconds = 0;               ///< time of decoding
  double wire_seconds = 0;                 ///< time with a message in transfer
  /// The part of wire_seconds outside wait().
  double hidden_seconds = 0;
  double exposed_seconds = 0;  ///< the time in wait()
  /// |sent − decoded| / |sent| of this rank's last encode.
  double relative_error = 0;
  std::uint64_t steps_discarded = 0;  ///< discarded steps
  /// Number of codec changes by "auto"; only in the statistics of all parameters.
  std::uint64_t codec_changes = 0;
  std::uint64_t overflows = 0;  ///< finite values that became infinite
};

/// Reduces a trainer's gradients over all ranks in the background, and keeps the residuals. Each
/// parameter is all-reduced or reduce-scattered, as selected in `add`.
///
/// Device gradients belong to the device that is current in the first `add`; later calls may have
/// another current device. The reducer uses its own stream: after the work that the trainer
/// queues on ReducerOptions::stream before `ready`, and before the work queued after `wait`. Over a
/// transport that queues (NCCL), only the first step blocks the host. Later steps may be captured
/// in a CUDA graph (Transactional::kOff, all gradients on the device). Over other transports (MPI),
/// `wait` returns when the results are queued. The reducer uses a separate communicator
/// concurrently with the trainer's; docs/how-to/gpu.md lists NCCL's conditions.
///
/// Functions throw InvalidArgumentError for bad arguments and change nothing then. One thread at a
/// time may call a reducer, except where noted.
class GradientReducer {
 public:
  /// Makes a channel of `transport`, which must outlive the reducer. A collective call. Throws
  /// InvalidArgumentError for invalid options.
  GradientReducer(Transport& transport, ReducerOptions options);
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  /// Adds a parameter before the first step or between two steps. The next step includes the
  /// parameter and learns the sending order again. All ranks add the same parameters in the same
  /// order between the same steps. `gradient` must outlive the reducer, or every `ready` must pass
  /// a gradient. `rows` and `columns` (0: a 1-D parameter) select rules for 1-D parameters and
  /// describe the matrix for codecs of matrices (see GradientShape). Throws InvalidArgumentError if
  /// gradients of this step are already ready, after `weigh`, and after the capture of a step in a
  /// graph.
  void add(std::string name, ValueSpan gradient, std::size_t rows = 0, std::size_t columns = 0);

  /// Adds a parameter whose gradient is passed in each `ready` and may be freed after the step.
  /// Also for reduce-scatter (GradientShape::collective). A step in which the parameter is not
  /// ready is an error regardless of ReducerOptions::missing, because the result has no
  /// destination. Pass Contribution::kNone if there is no gradient.
  void add(std::string name, const GradientShape& shape);

  /// Sets the sample weight of this rank's gradients (ReducerOptions::weighted). Call `weigh` on
  /// all ranks in each step before the first `ready`. The gradients are means over `samples`
  /// samples; the number need not be an integer. The result is the mean over all samples, Σ samples
  /// · gradient / Σ samples. Each rank scales its gradient in the gradient's dtype before sending,
  /// by at most the number of ranks. The gradient of a rank with 0 samples is ignored
  /// (Contribution::kNone).
  ///
  /// `weigh` does not wait; the first `ready` waits for all ranks' calls. Call `weigh` again after
  /// `resume`, because the step starts again. Throws InvalidArgumentError for invalid samples. A
  /// later `ready` throws InvalidArgumentError if the step has no weight, or on all ranks if the
  /// sum of samples is 0 or not finite; then call `weigh` again. A step of a captured graph cannot
  /// be weighted.
  void weigh(double samples);

  /// Marks this step's gradient as complete. Tersor may send it from now on. The caller must not
  /// touch the gradient until its handle is done or `wait` has returned. Throws
  /// InvalidArgumentError for a second call in one step, and for memory that overlaps an unfinished
  /// gradient.
  ReducerHandle ready(std::string_view name);
  /// Variant for a gradient that is passed in each step, and for a rank without a gradient.
  ReducerHandle ready(std::string_view name, ValueSpan gradient,
                      Contribution contribution = Contribution::kGradient);
  /// Variant for reduce-scatter: writes this rank's shard of the result to `shard`, which may be
  /// this rank's part of the gradient. With kHierarchical, the rest of the gradient is overwritten.
  ReducerHandle ready(std::string_view name, ValueSpan gradient, ValueSpan shard,
                      Contribution contribution = Contribution::kGradient);

  /// Marks several gradients as ready. Returns the handles in the same order. If one gradient is
  /// invalid, no gradient becomes ready.
  std::vector<ReducerHandle> ready(std::span<const ReadyGradient> together);

  /// Ends the step without waiting. A parameter that is not ready is an error on all ranks, or
  /// inactive (ReducerOptions::missing).
  void flush();
  /// Ends the step and blocks until every gradient holds the sum or mean. Throws the error that
  /// ended the exchange.
  void wait();
  /// Makes progress if no thread of the reducer does (ProgressBy::kCaller). Never waits.
  void progress();

  // Calls between two steps. Except for `resume`, `check_faults` and `transport`, the calls from
  // here to `load_state` throw InvalidArgumentError if gradients of a step are ready, because
  // messages under way use the residuals.

  /// Makes the next step learn the sending order from rank 0 again. Only for
  /// SendingOrder::kLearned.
  void relearn_order();

  /// Multiplies all residuals by `factor`. Call this when a loss scale changes by `factor`, because
  /// residuals have the gradient's units. 0 also clears NaNs. Throws InvalidArgumentError for a
  /// factor that is not finite.
  void scale_residuals(float factor);
  /// Scales only the residuals of these parameters, e.g. for a separately exchanged part of a
  /// model. Throws InvalidArgumentError and scales nothing if a name was never added.
  void scale_residuals(float factor, std::span<const std::string> names);
  /// Restores the residuals from before the last step (Transactional::kOn only), after a skipped
  /// step or an error. If `accept_steps` was called, restores the residuals from its last call.
  /// Throws InvalidArgumentError if there is no step to discard.
  void discard_step();
  /// Does the same only for these parameters. Parameters without a step to discard do not change.
  void discard_step(std::span<const std::string> names);
  /// Accepts the steps since the last call as final (Transactional::kOn only). After the first
  /// call, steps are joined: the second and later steps after each call update residuals in place,
  /// so `discard_step` takes back all of them. Not for elastic reducers. All ranks must make the
  /// same calls.
  void accept_steps();
  /// Does the same only for these parameters.
  void accept_steps(std::span<const std::string> names);

  /// Continues with the remaining ranks after a RanksLostError (ReducerOptions::elastic). All
  /// remaining ranks must call `resume`. The current step starts again and learns the sending
  /// order. Residuals stay, except the residuals on lost ranks. Handles stay valid. "auto" measures
  /// again. Throws RanksLostError if another rank was lost in the meantime; then call `resume`
  /// again. Throws InvalidArgumentError if too few ranks remain, if no rank was lost, or if the
  /// options contain dims or hosts of the earlier ranks.
  void resume();
  /// Call this after a TransportError on another channel of the same ranks, owned by the trainer.
  /// Throws this reducer's error once there is one: RanksLostError, or the errors of `resume`, for
  /// an elastic reducer. Returns if no fault is known.
  void check_faults();
  /// The former name of `check_faults`.
  [[deprecated("use check_faults")]] void hear_fault() { check_faults(); }
  /// Returns the transport of the current ranks: the constructor's argument or, after `resume`, the
  /// reducer's own transport.
  Transport& transport() const;

  /// Returns the state of this rank. A run with the same number of ranks continues bit for bit from
  /// this state. Also works after an error, like `statistics` and `explain`. The residuals are then
  /// from the last completed step (Transactional::kOn), or include changes of the failed step.
  std::vector<std::byte> save_state() const;
  /// Returns the sum of the states over ranks, for any number of ranks. A collective call.
  std::vector<std::byte> save_portable_state() const;
  /// Loads the result of save_state or save_portable_state. Throws InvalidArgumentError and changes
  /// nothing if the state does not fit: other parameters, counts or ranks, a sending order that is
  /// no permutation, or values that are not finite; and after `weigh`. Ranks compare their states
  /// in the next step. If the steps, the forms (exact or portable), the codec memories or the
  /// `common` numbers differ, every rank throws a TransportError that names two ranks and their
  /// states. All ranks use rank 0's sending order. `common`: a hash of the caller's own part of the
  /// save, if that part is equal on all ranks.
  void load_state(std::span<const std::byte> state, std::uint64_t common = 0);

  /// Returns the statistics of all parameters together. Waits for flushed steps and for the device.
  ReducerStatistics statistics() const;
  /// Returns the statistics of the completed steps, also on a device. Thread-safe. Waits for no
  /// step, at most for the trainer's thread between two steps.
  ReducerStatistics statistics_so_far() const;
  /// Returns the statistics of each parameter, in the order of `add`.
  std::vector<ReducerStatistics> parameter_statistics() const;
  /// Returns the Euclidean norms of this rank's residuals, in the order of parameter_statistics().
  /// Reads all residuals, and waits for the device.
  std::vector<double> residual_norms() const;
  /// Writes ReducerOptions::trace now, without waiting. Throws InvalidArgumentError if the option
  /// is empty, and Error if writing fails.
  void write_trace() const;
  /// Sets all statistics to zero.
  void reset_statistics();
  /// True if "auto" tries no other codecs for now. While "auto" learns, false before the first
  /// step.
  bool settled() const;
  /// Returns the decisions and their reasons, one line per parameter, followed by `explain_choice`.
  std::string explain() const;
  /// Returns the measurements, predictions and trials of "auto"; empty if no rule uses "auto".
  std::string explain_choice() const;

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace tersor
