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

/// One rank of a running measurement, with functions to meet the other ranks. Messages of these
/// functions are separate from measured messages.
class Rank {
 public:
  virtual ~Rank() = default;

  virtual Transport& transport() = 0;
  int index() { return transport().rank(); }
  /// True on rank 0, the rank with checks and reports.
  bool first() { return index() == 0; }
  /// True on the single rank per process that stores results.
  virtual bool stores() = 0;

  /// Returns after all ranks have called this function.
  virtual void meet() = 0;
  /// Returns the bytes of all ranks by rank. Every rank passes the same number of bytes.
  virtual std::vector<std::vector<std::byte>> gather_bytes(ConstByteSpan own) = 0;
  /// Null without a library.
  virtual const Library* library() const { return nullptr; }

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
  T from_first(T own) {
    return gather(std::span<const T>(&own, 1)).front().front();
  }
};

/// The neighbours in a ring of ranks.
constexpr int next_rank(int rank, int ranks) { return (rank + 1) % ranks; }
constexpr int rank_before(int rank, int ranks) { return (rank + ranks - 1) % ranks; }

class Fleet {
 public:
  virtual ~Fleet() = default;

  virtual int ranks() const = 0;
  /// "4 ranks in this process, link 1Gbit,50us"
  virtual std::string text() const = 0;
  /// True if rank 0 is in this process. Other processes print nothing and write no files.
  virtual bool leads() const = 0;
  /// The only rank in this process; nullopt if all ranks are in this process.
  virtual std::optional<int> only_rank() const = 0;
  /// The library of the ranks.
  virtual const Library* library() const { return nullptr; }
  /// Runs `body` once per rank in this process. Rethrows a rank's exception.
  virtual void run(const std::function<void(Rank&)>& body) = 0;
};

/// Returns the result of `measure` on the storing rank.
template <typename Measure>
auto measure_on(Fleet& fleet, const Measure& measure) {
  std::invoke_result_t<Measure, Rank&> result{};
  fleet.run([&](Rank& rank) {
    auto own = measure(rank);
    if (rank.stores()) result = std::move(own);
  });
  return result;
}

/// Makes a fleet of threads over an emulated link.
std::unique_ptr<Fleet> make_thread_fleet(int ranks, const Link& link);

/// Command-line options of a fleet.
struct FleetOptions {
  std::string transport = "inproc";  ///< or "mpi" or "tcp", if supported by this build
  /// number of ranks to start, default 4; mpirun determines its own number
  std::optional<int> ranks = {};
  std::string link = "none";
  std::string address = {};  ///< as in TcpOptions
  int connections = 1;       ///< as in TcpOptions
};

/// Throws InvalidArgumentError for a transport missing in this build, and for a number of ranks
/// that differs from mpirun's.
std::unique_ptr<Fleet> make_fleet(const FleetOptions& options);

/// The transports supported by `make_fleet`.
std::vector<std::string> transport_names();

}  // namespace tersor::bench
