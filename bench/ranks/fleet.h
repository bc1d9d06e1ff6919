// The ranks of a measurement: threads of this process, or processes. Measurements work the same
// with both.
#pragma once

#include <tersor/inprocess.h>
#include <tersor/transport.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace CLI {
class App;
}

namespace tersor::bench {

/// The functions of the library below a transport.
struct Library {
  std::string name;  ///< name of the sum
  /// The sum over ranks, in place. Sums of device memory are queued on the stream. Throws
  /// InvalidArgumentError for unsupported values.
  std::function<void(ValueSpan values, StreamView stream)> sum;
  /// Calls a collective by name ("MPI_Bcast") on f32, with root 0. The output of a broadcast
  /// initially holds rank 0's values. Empty if such collectives are not measured.
  std::function<void(std::string_view name, ConstValueSpan input, ValueSpan output)> call = {};
};

using Transports = std::vector<std::unique_ptr<Transport>>;

/// The parts of a fleet, in the order of their lifetimes.
struct FleetParts {
  std::shared_ptr<void> owner = {};  ///< of the transport's resources; may be null
  /// the transport of this process's only rank; null if all ranks are threads of this process
  std::unique_ptr<Transport> transport = {};
  std::function<Transports()> threads = {};  ///< makes the transports of a run on threads
  int ranks = 1;                             ///< number of threads
  std::optional<Library> library = {};
  std::string text;  ///< "4 ranks in this process, link 1Gbit,50us"
  /// Barriers per Rank::barrier. A single barrier ends first on the last rank to arrive. A second
  /// barrier brings the ranks closer together.
  int barriers = 2;
};

/// One rank of a running measurement, with a barrier and gathers of all ranks. Messages of these
/// functions are separate from measured messages.
class Rank {
 public:
  Rank(Transport& measured, Transport& control, const FleetParts& fleet)
      : measured_(measured), control_(control), fleet_(fleet) {}

  Transport& transport() { return measured_; }
  int index() { return measured_.rank(); }
  /// True on rank 0, the rank with checks and reports.
  bool is_rank0() { return index() == 0; }
  /// True on the single rank per process that stores results.
  bool stores_result() { return fleet_.transport != nullptr || is_rank0(); }
  /// Null without a library.
  const Library* library() const { return fleet_.library ? &*fleet_.library : nullptr; }

  /// Returns after all ranks have called this function.
  void barrier();
  /// Returns the bytes of all ranks by rank. Every rank passes the same number of bytes.
  std::vector<std::vector<std::byte>> gather_bytes(ConstByteSpan own);

  /// Returns the values of all ranks by rank. Every rank passes the same number of values.
  template <typename T>
  std::vector<std::vector<T>> gather(std::span<const T> own) {
    std::vector<std::vector<T>> all;
    for (const auto& bytes : gather_bytes(std::as_bytes(own))) {
      all.emplace_back(own.size());
      const std::size_t fits =
          std::min(bytes.size(), own.size_bytes());  // a failed rank may send fewer bytes
      if (fits != 0) std::memcpy(all.back().data(), bytes.data(), fits);
    }
    return all;
  }
  /// Returns rank 0's value on all ranks.
  template <typename T>
  T from_rank0(T own) {
    return gather(std::span<const T>(&own, 1)).front().front();
  }
  /// Returns the maximum over ranks on all ranks.
  double maximum(double own) {
    return std::ranges::max(gather(std::span<const double>(&own, 1)))[0];
  }

 private:
  Operation operation(std::string_view name);

  Transport& measured_;
  Transport& control_;
  const FleetParts& fleet_;
};

/// The neighbours in a ring of ranks.
constexpr int next_rank(int rank, int ranks) { return (rank + 1) % ranks; }
constexpr int rank_before(int rank, int ranks) { return (rank + ranks - 1) % ranks; }

class Fleet {
 public:
  /// In processes other than rank 0's, nothing is printed from now on. Throws Error if the output
  /// cannot be silenced.
  explicit Fleet(FleetParts parts);

  int ranks() const { return measured_ == nullptr ? parts_.ranks : measured_->ranks(); }
  const std::string& text() const { return parts_.text; }
  /// True if rank 0 is in this process. Other processes print nothing and write no files.
  bool has_rank0() const { return only_rank().value_or(0) == 0; }
  /// The only rank in this process; nullopt if all ranks are in this process.
  std::optional<int> only_rank() const {
    return measured_ == nullptr ? std::nullopt : std::optional(measured_->rank());
  }
  /// The library of the ranks; null without a library.
  const Library* library() const { return parts_.library ? &*parts_.library : nullptr; }
  /// Runs `body` once per rank in this process. If ranks on threads throw, prints each rank's
  /// reason and rethrows an exception that caused the others.
  void run(const std::function<void(Rank&)>& body);

 private:
  FleetParts parts_;
  std::unique_ptr<Transport> measured_;  // null if all ranks are threads
};

/// Returns the result of `measure` on the storing rank.
template <typename Measure>
auto measure_on(Fleet& fleet, const Measure& measure) {
  std::invoke_result_t<Measure, Rank&> result{};
  fleet.run([&](Rank& rank) {
    auto own = measure(rank);
    if (rank.stores_result()) result = std::move(own);
  });
  return result;
}

/// Command-line options of a fleet.
struct FleetOptions {
  std::string transport = "inproc";  ///< or "mpi" or "tcp", if supported by this build
  /// number of ranks to start, default 4; mpirun determines its own number
  std::optional<int> ranks = {};
  std::string link = "none";  ///< between processes only a name in records
  std::string address = {};   ///< as in TcpOptions
  int connections = 1;        ///< as in TcpOptions
};

inline constexpr int kDefaultRanks = 4;

/// The transports supported by `make_fleet`.
std::vector<std::string> transport_names();

/// --transport NAME, --ranks N (at least 1), --link
void add_fleet(CLI::App& command, FleetOptions& fleet,
               const std::vector<std::string>& transports = transport_names());

/// Throws InvalidArgumentError for a transport missing in this build, and for a number of ranks
/// that differs from a launcher's.
std::unique_ptr<Fleet> make_fleet(const FleetOptions& options);

/// Makes a fleet of threads over an emulated link.
std::unique_ptr<Fleet> make_thread_fleet(int ranks, const Link& link);

// The functions below need a build with MPI or TCP.

/// Makes a fleet of the ranks started by mpirun. Initialises MPI for the lifetime of the fleet.
/// Throws InvalidArgumentError if --ranks differs from mpirun's number.
std::unique_ptr<Fleet> make_mpi_fleet(const FleetOptions& options);

/// Starts the other ranks unless a launcher started them. Throws InvalidArgumentError if --ranks
/// differs from the launcher's number, and for invalid variables of the launcher. Also throws the
/// exceptions of make_tcp_transport.
std::unique_ptr<Fleet> make_tcp_fleet(const FleetOptions& options);

/// Makes a fleet of threads that exchange messages over TCP on the loopback.
std::unique_ptr<Fleet> make_loopback_fleet(int ranks);

}  // namespace tersor::bench
