// Computes arrival times of messages on an emulated link. Never waits: time is an argument.
//
// Each host has an egress and an ingress with the link's rate, full duplex. The messages from a
// host to another host form a flow in FIFO order. The flows of a host alternate in segments of 16
// KiB. A segment of s bytes (multiplied by the overhead) takes:
//   depart = max(now, egress free) + s / rate
//   arrive = max(depart + latency, ingress free + s / rate)
// Segments reach an ingress in order of departure.
#pragma once

#include <tersor/inprocess.h>

#include <cstddef>
#include <functional>
#include <limits>
#include <list>
#include <queue>
#include <tuple>
#include <vector>

namespace tersor::inproc {

using Seconds = double;  ///< since the creation of the network
inline constexpr Seconds kNever = std::numeric_limits<Seconds>::infinity();

/// A message on the link. Must not move until the arrival.
struct Packet {
  int source = 0;  ///< host
  int destination = 0;
  std::size_t bytes = 0;     ///< total, including the envelope
  std::size_t unsent = 0;    ///< bytes not yet in a departing segment
  Seconds arrival = kNever;  ///< known when the last segment has departed
};
/// Packets in order.
using PacketQueue = std::list<Packet*>;

class LinkEmulator {
 public:
  static constexpr std::size_t kSegmentBytes = 16 * 1024;

  LinkEmulator(int hosts, const Link& link);

  /// Starts a packet of at least one byte. Call `advance(now, …)` first.
  void post(Packet& packet, Seconds now);

  /// Processes all events up to `now` and calls `arrived(packet)` for each arrived packet.
  template <typename Arrived>
  void advance(Seconds now, Arrived&& arrived) {
    depart_until(now);
    while (!departed_.empty() && std::get<Seconds>(departed_.top()) <= now) {
      Packet& packet = *std::get<Packet*>(departed_.top());
      departed_.pop();
      arrived(packet);
    }
  }

  /// A lower bound of the packet's arrival time; exact without later competing packets.
  Seconds earliest_arrival(const Packet& packet) const;

 private:
  struct Egress {
    std::vector<PacketQueue> flows;  // by destination
    std::vector<int> active;         // destinations of non-empty flows, ascending
    Packet* current = nullptr;       // packet of the departing segment
    std::size_t segment = 0;         // bytes of the departing segment
    Seconds free = 0;                // departure time of the segment
    int last_served = 0;             // destination of the last served flow
  };

  template <typename Event>
  using MinHeap = std::priority_queue<Event, std::vector<Event>, std::greater<Event>>;

  Seconds duration(std::size_t bytes) const { return static_cast<double>(bytes) * per_byte_; }
  void depart_until(Seconds now);
  void finish_segment(Egress& egress);
  void begin_segment(Egress& egress, Seconds now);
  Seconds departure(const Egress& egress, const Packet& packet) const;

  Seconds per_byte_;
  Seconds latency_;
  std::vector<Egress> egresses_;
  std::vector<Seconds> ingress_free_;
  MinHeap<std::tuple<Seconds, Egress*>> departing_;  // departure time of each egress's segment
  // Complete packets, by arrival and destination.
  MinHeap<std::tuple<Seconds, int, Packet*>> departed_;
};

}  // namespace tersor::inproc
