// The GradientReducer: what a trainer links. Gradients are sent while the rest is computed.
#pragma once

#include <tersor/auto.h>
#include <tersor/collectives.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tersor {

/// Parameters whose name matches `pattern` (shell style: * and ?) travel by `codec`; "auto": at
/// first by what a Tuner predicts to be quickest for those of this rule and their dtype, then by
/// what steps were quickest with.
///
/// Several rules of one pattern are a schedule: each counts from its step on. Where one of them has
/// "+ef" all go with feedback, so that nothing is lost when the codec changes; "auto" has no place
/// in a schedule.
struct ReducerRule {
  std::string pattern;
  std::string codec;
  std::uint32_t from_step = 0;  ///< steps that are complete, those before a loaded state included
};

/// What a parameter that is not ready at the end of a step means: a mistake, or that it had no
/// gradient: it then contributes zeros and keeps its residual.
enum class MissingGradient : std::uint8_t { kError, kInactive };

/// In which order gradients are sent.
enum class SendingOrder : std::uint8_t {
  kLearned,  ///< as rank 0's became ready in the first step, at the end of which that one is sent
  /// As they become ready, from the first step on, which is the same order on all ranks. What is
  /// not ready in a step takes no part in it on any rank, and keeps its residual. Parameters that
  /// one call makes ready share messages with each other only.
  kOfReady,
};

/// What a parameter that is ready brings: its gradient; or nothing on this rank: it then sends
/// zeros, keeps its residual, and gets the result all the same; or nothing on any.
enum class Contribution : std::uint8_t {
  kGradient,
  kNone,  ///< the gradient's memory is cleared
  /// As kNone where all bits of the gradient are 0, as of a parameter that this rank did not use.
  /// On a device, where a look would have to wait, as kGradient.
  kGradientUnlessZero,
  /// No rank has a gradient, and all say so: the result is zeros, and all that is kept of the
  /// parameter stays as it was, an owner's residual too (with kNone that goes into the result).
  kNowhere,
};

/// Whether the residuals from before the last step are kept, so that `discard_step` can bring them
/// back; they then take twice the memory.
enum class Transactions : std::uint8_t { kOff, kOn };

/// Who sends: a thread of the reducer, or the caller inside `ready`, `progress` and `wait` (always
/// so where the transport may not be called from any thread).
enum class ProgressBy : std::uint8_t { kThread, kCaller };

/// Whether each step encodes and decodes once more to measure the relative error: slow, for study.
/// Refused for a hierarchical reducer, where a rank encodes its host's sum and not its own
/// gradient. What is cut or rounded on scales that ranks share is seen as of equal gradients.
enum class MeasureError : std::uint8_t { kOff, kOn };

/// Whether "auto" tries other codecs than the predicted one while training goes on. Without, the
/// same run goes the same way again. Reducers that learn become ready in one order on all ranks.
enum class Learning : std::uint8_t { kOff, kOn };

/// Whether the others may go on when a rank dies: every step then ends with a word of all, and
/// residuals are kept in two generations, as for transactions. What is all-reduced alone, over
/// TcpTransport or in process, with a Tuner of the reducer's own.
enum class Elastic : std::uint8_t { kOff, kOn };

/// Whether each step's gradients are means over as many samples as each rank tells: see
/// GradientReducer::weigh.
enum class Weights : std::uint8_t { kOff, kOn };

/// Options of a GradientReducer. Ranks must pass equal ones (but for `threads`).
struct ReducerOptions {
  /// First match wins; a parameter that none matches is an error. Empty: `codec` for all, but
  /// unless it loses nothing 1-D parameters and those under 4,096 values travel as bf16 (16-bit
  /// gradients as they are).
  std::vector<ReducerRule> rules = {};
  std::string codec = "bf16";  ///< a spec, or "auto"
  AutoOptions automatic = {};  ///< of the Tuner that the reducer makes where "auto" is asked for
  Tuner* tuner = nullptr;      ///< used instead of one of its own; must outlive the last `add`
  Learning learning = Learning::kOn;
  Reduction reduction = Reduction::kMean;
  Algorithm algorithm = Algorithm::kAuto;  ///< of what is all-reduced; kHierarchical: of all
  /// As in CollectiveOptions: the host of each rank (empty: Transport::hosts()), and the codec
  /// within a host.
  std::vector<int> hosts = {};
  /// As in CollectiveOptions: of two-shot parameters, where ranks are not grouped by host.
  std::vector<int> dims = {};
  /// As in CollectiveOptions; between hosts too.
  double error_growth = kDefaultErrorGrowth;
  std::string host_codec = "none";
  std::size_t bucket_bytes = std::size_t{1} << 20;  ///< of gradient; small ones share a message
  std::size_t chunk_count = 0;  ///< values; longer parameters are cut; 0: as the transport has it
  Dtype residual_dtype = Dtype::kF32;  ///< or bf16
  std::uint64_t seed = 0;              ///< of stochastic rounding
  SendingOrder order = SendingOrder::kLearned;
  MissingGradient missing = MissingGradient::kError;  ///< of a learned order
  Transactions transactions = Transactions::kOff;
  ProgressBy progress = ProgressBy::kThread;
  Elastic elastic = Elastic::kOff;
  /// Of an elastic reducer: so many ranks may go on without the others. 0: more than half, or half
  /// with the lowest rank, so that of two parts that have lost each other one goes on at most.
  int least_ranks = 0;
  Weights weights = Weights::kOff;  ///< with Reduction::kMean
  MeasureError measure_error = MeasureError::kOff;
  Checksum checksum = Checksum::kOn;
  std::chrono::milliseconds timeout = kDefaultTimeout;
  unsigned threads = 1;    ///< for codecs, beside the sending thread
  StreamView stream = {};  ///< of device gradients: where the trainer queues its work
  /// A file, in which ".rank<number>" stands before what its name ends in: it gets the newest
  /// events as a trace in Chrome's format, which https://ui.perfetto.dev shows, when the reducer
  /// ends or at write_trace(). Of work on a device it has only when gradients became ready and who
  /// waited.
  std::string trace = {};
};

/// What a parameter's gradients will be like, where none is there yet.
struct GradientShape {
  std::size_t count = 0;
  Dtype dtype = Dtype::kF32;
  Memory memory = Memory::kHost;
  /// Of the matrix that lies in memory, row after row: of a transposed one its columns come first.
  std::size_t rows = 0;
  std::size_t columns = 0;  ///< 0: a 1-D parameter
  /// In which order values lie, as in CollectiveOptions: the same in each step and on all ranks.
  std::uint32_t order = 0;
  Collective collective = Collective::kAllreduce;
  /// Of a reduce-scatter: what each rank gets, at least ceil(count / ranks) values, which is what 0
  /// means. A step's gradient has as many for each rank, one shard behind the other; what is beyond
  /// `count` is padding.
  std::size_t shard_count = 0;
};

/// Handle of one parameter's reduction in the current step; cheap to copy. Valid until the reducer
/// goes away.
class ReducerHandle {
 public:
  /// True once this parameter's gradient holds the result. Never waits.
  bool test() const;
  /// Waits for this parameter alone. Its step must have been flushed, or its order be known: not
  /// the first step that learns one. Over a transport that queues, before the flush only with
  /// SendingOrder::kOfReady, and if all ranks wait alike. Throws what ended the exchange. Gradients
  /// on a device: ReducerOptions::stream waits, not the host, and so after a true `test`.
  void wait() const;

 private:
  friend class GradientReducer;
  struct Shared;
  std::shared_ptr<Shared> shared_;
  std::uint32_t parameter_ = 0;
  std::uint32_t step_ = 0;
};

/// A gradient, as `ready` takes it.
struct ReadyGradient {
  std::string_view name;
  ValueSpan gradient;
  ValueSpan shard = {};  ///< of a reduce-scatter
  Contribution contribution = Contribution::kGradient;
};

/// What happened to one parameter, or to all. Seconds and bytes are sums since construction or
/// `reset_statistics`; `steps` says over how many steps that it took part in.
struct ReducerStatistics {
  std::string name;   ///< of the parameter; "" for all
  std::string codec;  ///< and why it was chosen, in `reason`
  std::string reason;
  bool codec_may_change = false;  ///< "auto" or a schedule chooses it: another run may have another
  Algorithm algorithm = Algorithm::kAuto;
  std::uint64_t steps = 0;
  std::uint64_t gradient_bytes = 0;
  std::uint64_t sent_bytes = 0;
  double encode_seconds = 0;
  double decode_seconds = 0;
  double wire_seconds = 0;
  double hidden_seconds = 0;   ///< of wire_seconds, while the trainer was not in wait()
  double exposed_seconds = 0;  ///< in wait()
  double relative_error = 0;   ///< |sent − decoded| / |sent| of this rank's last encode
  std::uint64_t steps_discarded = 0;
  std::uint64_t codec_changes = 0;  ///< times that "auto" went another way; of all together only
  std::uint64_t overflows = 0;
};

/// Reduces a trainer's gradients over ranks, in the background, with residuals looked after: to all
/// ranks, or of each parameter a shard to every rank, as it was added.
///
/// Gradients on a device go by a stream of the reducer's own, between what the trainer queues on
/// ReducerOptions::stream before `ready` and after `wait`. Over a transport that queues (NCCL)
/// nothing but the first step waits on the host, and later steps may be captured
/// (Transactions::kOff, all gradients there); over one that does not (MPI) `wait` returns when the
/// results are queued. The reducer's communicator works beside the trainer's own: docs/gpu.md says
/// what NCCL asks for then.
class GradientReducer {
 public:
  /// The transport must outlive the reducer, which uses a channel of its own.
  GradientReducer(Transport& transport, ReducerOptions options);
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  /// Adds a parameter, before the first step or between two: it is part of the next one, in which
  /// the order of sending is learned anew. Its gradient span must outlive the reducer or be given
  /// anew in each `ready`. All ranks add the same ones in the same order, between the same steps.
  /// `rows` and `columns` (0: a 1-D parameter) choose between 1-D and others, and say for codecs of
  /// matrices how values lie: GradientShape. Throws InvalidArgument where gradients of this step
  /// are ready, and once a step was captured: a graph goes on as it was.
  void add(std::string name, ValueSpan gradient, std::size_t rows = 0, std::size_t columns = 0);

  /// As above for a parameter whose gradient is given anew in each `ready`, and may be freed when
  /// the step is over; also for one of which each rank gets a shard (GradientShape::collective). A
  /// step in which it is not ready is an error, whatever ReducerOptions::missing says: its result
  /// would have no place. Contribution::kNone says that it has no gradient.
  void add(std::string name, const GradientShape& shape);

  /// Before a step's first gradient is ready, on all ranks in each step (ReducerOptions::weights):
  /// this rank's gradients are means over so many samples, which need not be a whole number. What
  /// arrives is the mean over all samples, Σ samples · gradient / Σ samples: a gradient is scaled
  /// in its own dtype, by at most the number of ranks, before it is sent. One of 0 samples is not
  /// looked at (Contribution::kNone). Does not wait; the first `ready` does, for the slowest rank's
  /// call. After `resume` the step that begins anew is weighed again. Throws InvalidArgument, as
  /// `ready` of a step that was not weighed; that throws it too, on all ranks, where all samples
  /// together are 0 or not finite: then the step may be weighed again. A step of a captured graph
  /// cannot be weighed.
  void weigh(double samples);

  /// The gradient of this step is there: it may be sent from now on, and must be left alone until
  /// its handle is done or `wait` returned. Twice in one step is an InvalidArgument, as is memory
  /// that overlaps another gradient which is not done.
  ReducerHandle ready(std::string_view name);
  ReducerHandle ready(std::string_view name, ValueSpan gradient,
                      Contribution contribution = Contribution::kGradient);
  /// As above of a parameter that goes by reduce-scatter: this rank's shard of the result comes to
  /// `shard`, which may lie within the gradient, at its own place there. By hosts (kHierarchical)
  /// the rest of the gradient is overwritten.
  ReducerHandle ready(std::string_view name, ValueSpan gradient, ValueSpan shard,
                      Contribution contribution = Contribution::kGradient);

  /// As above of several; the handles are in their order.
  std::vector<ReducerHandle> ready(std::span<const ReadyGradient> together);

  /// Ends the step without waiting. A parameter not ready is an error on all ranks, or inactive.
  void flush();
  /// Ends the step and waits: every gradient is the sum or mean now. Throws what ended the
  /// exchange.
  void wait();
  /// Moves what is under way, where no thread does (ProgressBy::kCaller). Never waits.
  void progress();

  /// The next step learns the order of sending again, from rank 0, where it is learned at all.
  void relearn_order();

  /// When a loss scale changes by `factor`: residuals are in the gradient's units. 0 clears NaNs,
  /// too. Throws InvalidArgument for a factor that is not finite.
  void scale_residuals(float factor);
  /// Those of these parameters alone, as of a part of a model that is exchanged by itself. Throws
  /// InvalidArgument, and scales nothing, where one of them was never added.
  void scale_residuals(float factor, std::span<const std::string> names);
  /// Brings back the residuals from before the last step (Transactions::kOn only), after a skipped
  /// step or an error. After `accept_steps` was called: from before all steps since its last call.
  void discard_step();
  /// The same for these parameters alone. Parameters without a step to discard are left alone.
  void discard_step(std::span<const std::string> names);
  /// The steps since the last call are final (Transactions::kOn only). From the first call on,
  /// steps join: the second and later steps after a call write residuals in place, so that
  /// `discard_step` takes back all of them. Not for elastic reducers. All ranks call it alike.
  void accept_steps();
  /// The same for these parameters alone.
  void accept_steps(std::span<const std::string> names);

  /// After a RanksLost (ReducerOptions::elastic): goes on with those who are left, who all call it.
  /// What ranks owe by error feedback goes on as well, but for what was kept where a rank is gone;
  /// the step under way begins anew, and learns the order of sending. Handles stay valid. "auto"
  /// measures again. Throws RanksLost where one more was lost meanwhile: call it again; and
  /// InvalidArgument where too few are left, where no rank was lost, and where dims or hosts of the
  /// ranks of before were given.
  void resume();
  /// After a TransportError on another channel of the ranks that it reduces over, of the trainer's
  /// own: throws this reducer's error, once it has one: of an elastic one RanksLost, or what
  /// `resume` throws. Returns where no fault is known.
  void hear_fault();
  /// Of the ranks that it reduces over: the one it was made with, after `resume` one of its own.
  Transport& transport() const;

  /// State of this rank: the same run goes on bit for bit from it, on as many ranks. After an error
  /// too, as `statistics`, `explain` and all that asks: residuals are those of the last complete
  /// step with Transactions::kOn, else with what the broken one had changed by then.
  std::vector<std::byte> save_state() const;
  /// The sum over ranks (a collective call): for any number of ranks.
  std::vector<std::byte> save_portable_state() const;
  /// Loads either. Throws InvalidArgument, and changes nothing, if the state does not fit: other
  /// parameters, counts or ranks, a sending order that is no permutation, values that are not
  /// finite. In the next step ranks compare their states. If steps, forms or codecs' memories
  /// differ, every rank raises a TransportError that names two ranks and their states. All ranks
  /// take rank 0's sending order.
  void load_state(std::span<const std::byte> state);

  ReducerStatistics statistics() const;
  /// The same of the steps that are complete, on a device too. Any thread; waits for no step, and
  /// for what the trainer's thread does between two at most.
  ReducerStatistics statistics_so_far() const;
  std::vector<ReducerStatistics> parameter_statistics() const;
  /// The Euclidean norm of what error feedback keeps of each parameter of this rank, as many as
  /// parameter_statistics() has: a pass over all residuals, and waits for a device.
  std::vector<double> residual_norms() const;
  /// Writes ReducerOptions::trace now. Throws InvalidArgument where there is none, Error where that
  /// fails.
  void write_trace() const;
  void reset_statistics();
  /// Whether "auto" tries nothing, for now. Before the first step nothing is settled.
  bool settled() const;
  /// What was decided and why, a line a parameter, and then `explain_choice`.
  std::string explain() const;
  /// What "auto" measured, predicted and tried; empty where it was not asked.
  std::string explain_choice() const;

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace tersor
