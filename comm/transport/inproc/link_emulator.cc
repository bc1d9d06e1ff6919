#include "comm/transport/inproc/link_emulator.h"

#include <tersor/align.h>

#include <algorithm>

namespace tersor::inproc {
namespace {

/// Bytes of the first `segments` segments of a flow.
std::size_t bytes_of_first(const PacketQueue& flow, std::size_t segments) {
  std::size_t bytes = 0;
  for (const Packet* packet : flow) {
    if (segments == 0) break;
    const std::size_t own = ceil_div(packet->unsent, LinkEmulator::kSegmentBytes);
    bytes += std::min(packet->unsent, segments * LinkEmulator::kSegmentBytes);
    segments -= std::min(own, segments);
  }
  return bytes;
}

}  // namespace

LinkEmulator::LinkEmulator(int hosts, const Link& link)
    : per_byte_(8 * link.overhead / link.bits_per_second),
      latency_(std::chrono::duration<double>(link.latency).count()),
      egresses_(static_cast<std::size_t>(hosts)),
      ingress_free_(egresses_.size(), 0) {
  for (int host = 0; host < hosts; ++host) {
    Egress& egress = egresses_[static_cast<std::size_t>(host)];
    egress.flows.resize(egresses_.size());
    egress.last_served = host;
  }
}

void LinkEmulator::post(Packet& packet, Seconds now) {
  Egress& egress = egresses_[static_cast<std::size_t>(packet.source)];
  packet.unsent = packet.bytes;
  packet.arrival = kNever;
  PacketQueue& flow = egress.flows[static_cast<std::size_t>(packet.destination)];
  if (flow.empty())
    egress.active.insert(std::ranges::lower_bound(egress.active, packet.destination),
                         packet.destination);
  flow.push_back(&packet);
  if (egress.current == nullptr) begin_segment(egress, now);
}

// Processes departures of all hosts in time order, because ingresses serve segments in this order.
void LinkEmulator::depart_until(Seconds now) {
  while (!departing_.empty() && std::get<Seconds>(departing_.top()) <= now) {
    Egress& next = *std::get<Egress*>(departing_.top());
    departing_.pop();
    finish_segment(next);
    begin_segment(next, next.free);
  }
}

void LinkEmulator::finish_segment(Egress& egress) {
  Packet& packet = *egress.current;
  const auto destination = static_cast<std::size_t>(packet.destination);
  const Seconds arrive =
      std::max(egress.free + latency_, ingress_free_[destination] + duration(egress.segment));
  ingress_free_[destination] = arrive;
  if (packet.unsent > 0) return;
  packet.arrival = arrive;
  departed_.emplace(arrive, packet.destination, &packet);
}

void LinkEmulator::begin_segment(Egress& egress, Seconds now) {
  egress.current = nullptr;
  if (egress.active.empty()) return;
  auto next = std::ranges::upper_bound(egress.active, egress.last_served);
  if (next == egress.active.end()) next = egress.active.begin();
  egress.last_served = *next;
  PacketQueue& flow = egress.flows[static_cast<std::size_t>(*next)];
  Packet& packet = *flow.front();
  egress.current = &packet;
  egress.segment = std::min(packet.unsent, kSegmentBytes);
  packet.unsent -= egress.segment;
  if (packet.unsent == 0) flow.pop_front();
  if (flow.empty()) egress.active.erase(next);
  egress.free = now + duration(egress.segment);
  departing_.emplace(egress.free, &egress);
}

// Let k be the number of segments of the flow up to the end of the packet. The last segment waits
// for at least k - 1 segments of every other flow, if the flow has as many.
Seconds LinkEmulator::departure(const Egress& egress, const Packet& packet) const {
  if (packet.unsent == 0) return egress.free;
  std::size_t segments = 0, bytes = 0;
  for (const Packet* before : egress.flows[static_cast<std::size_t>(packet.destination)]) {
    segments += ceil_div(before->unsent, kSegmentBytes);
    bytes += before->unsent;
    if (before == &packet) break;
  }
  for (const int destination : egress.active)
    if (destination != packet.destination)
      bytes += bytes_of_first(egress.flows[static_cast<std::size_t>(destination)], segments - 1);
  return egress.free + duration(bytes);
}

Seconds LinkEmulator::earliest_arrival(const Packet& packet) const {
  if (packet.arrival != kNever) return packet.arrival;
  const Egress& egress = egresses_[static_cast<std::size_t>(packet.source)];
  const std::size_t rest = packet.bytes % kSegmentBytes;
  const Seconds last = duration(rest == 0 ? kSegmentBytes : rest);
  return std::max(departure(egress, packet) + latency_,
                  ingress_free_[static_cast<std::size_t>(packet.destination)] + last);
}

}  // namespace tersor::inproc
