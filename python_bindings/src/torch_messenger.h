// The Python object that moves bytes over a process group of PyTorch, as C++ calls it.
#pragma once

#include <nanobind/nanobind.h>
#include <tersor/span.h>

#include <utility>

namespace tersor::python {

namespace nb = nanobind;

/// A message under way: PyTorch's `Work`.
using Work = nb::object;

/// Calls on `tersor.torch.group.Messenger`, with the GIL held. Errors of PyTorch are
/// TransportErrors.
class Messenger {
 public:
  /// Messages of one group between two ranks meet in their order. A receiver tells the sender that
  /// it is ready by a word of the network's own, which must stand behind no payload that goes the
  /// same way: so heads, payloads to higher ranks and payloads to lower ranks have each their
  /// group.
  enum class Group : int { kHeads = 0, kUpwards = 1, kDownwards = 2 };

  explicit Messenger(nb::object messenger) : messenger_(std::move(messenger)) {}
  /// The only one that takes the GIL itself.
  ~Messenger();
  Messenger(const Messenger&) = delete;
  Messenger& operator=(const Messenger&) = delete;

  /// Starts a message of at least one byte; both ends give the same number. The bytes stay where
  /// they are until the message was waited for.
  Work send(int peer, Group group, ConstByteSpan bytes) const;
  Work receive(int peer, Group group, ByteSpan bytes) const;
  /// Blocks until the message has left or come; without the GIL while it does.
  void wait(const Work& work) const;
  /// Ends all that is under way, with errors, here and at the peers. False where Python does not do
  /// so, though it was asked twice: Ctrl-C, which then comes later, may have met the first.
  bool abort() const;

 private:
  nb::object messenger_;
};

}  // namespace tersor::python
