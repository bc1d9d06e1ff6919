// When messages arrive over the emulated link, computed and not waited for: time is an argument.
//
// Each host has an egress and an ingress of the link's rate, full duplex. Messages of one host to
// one other are a flow, first in first out; the flows of a host take turns, a segment of 16 KiB
// each. A segment of s bytes (times the overhead) behaves so:
//   depart = max(now, egress free) + s / rate
//   arrive = max(depart + latency, ingress free + s / rate)
// and segments reach an ingress in the order in which they departed.
#pragma once

#include <tersor/inprocess.h>

#include <cstddef>
#include <functional>
#include <limits>
#include <queue>
#include <tuple>
#include <vector>

namespace tersor::inproc {

using Seconds = double;  ///< since the world began
inline constexpr Seconds kNever = std::numeric_limits<Seconds>::infinity();

/// One message on the link. Stays where it is until it has arrived.
struct Packet {
  int source = 0;  ///< host
  int destination = 0;
  std::size_t bytes = 0;     ///< all of them, envelope included
  std::size_t waiting = 0;   ///< of these, not yet in a segment that has begun to depart
  Seconds arrival = kNever;  ///< known as soon as the last segment has departed
  Packet* next = nullptr;    ///< in its flow
};

/// Packets in order, linked through `next`.
struct PacketQueue {
  Packet* first = nullptr;
  Packet* last = nullptr;

  bool empty() const { return first == nullptr; }
  void push(Packet& packet);
  Packet& pop();
};

class LinkEmulator {
 public:
  static constexpr std::size_t kSegmentBytes = 16 * 1024;

  LinkEmulator(int hosts, const Link& link);

  /// Starts a packet of at least one byte. Call `advance(now, …)` first.
  void post(Packet& packet, Seconds now);

  /// Moves everything that happens up to `now` and calls `arrived(packet)` for what came by then.
  template <typename Arrived>
  void advance(Seconds now, Arrived&& arrived) {
    depart_until(now);
    while (!departed_.empty() && std::get<Seconds>(departed_.top()) <= now) {
      Packet& packet = *std::get<Packet*>(departed_.top());
      departed_.pop();
      arrived(packet);
    }
  }

  /// A time before which the packet cannot arrive: exact where nothing else comes in between.
  Seconds earliest_arrival(const Packet& packet) const;

 private:
  struct Egress {
    std::vector<PacketQueue> flows;  // by destination
    std::vector<int> busy;           // flows that are not empty, ascending
    Packet* current = nullptr;       // whose segment is departing
    std::size_t segment = 0;         // its bytes
    Seconds free = 0;                // when it has departed
    int turn = 0;                    // the flow that was served last
  };

  template <typename Event>
  using Soonest = std::priority_queue<Event, std::vector<Event>, std::greater<Event>>;

  Seconds duration(std::size_t bytes) const { return static_cast<double>(bytes) * per_byte_; }
  void depart_until(Seconds now);
  void finish_segment(Egress& egress);
  void begin_segment(Egress& egress, Seconds now);
  Seconds departure(const Egress& egress, const Packet& packet) const;

  Seconds per_byte_;
  Seconds latency_;
  std::vector<Egress> egresses_;
  std::vector<Seconds> ingress_free_;
  Soonest<std::tuple<Seconds, Egress*>> departing_;      // when the segment of each has departed
  Soonest<std::tuple<Seconds, int, Packet*>> departed_;  // whole, by arrival and destination
};

}  // namespace tersor::inproc
