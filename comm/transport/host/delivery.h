// Messages on a rank: sends until the payloads have left, and incoming messages from header to
// delivery. Matches messages with receives, and ends operations that wait for departed ranks.
#pragma once

#include <tersor/network.h>

#include <deque>
#include <exception>

#include "comm/transport/host/fault_domains.h"
#include "comm/transport/host/flow_control.h"

namespace tersor::host {

class Delivery {
 public:
  Delivery(const Core& core, FaultDomains& faults, FlowControl& flow)
      : core_(core), faults_(faults), flow_(flow) {}

  /// Copies payloads into blocks if the wire needs blocks. Needs no lock.
  void pack(Batch& batch) const;
  /// Throws InvalidArgumentError if too many announced messages wait for their receivers.
  void check_announced(const ChannelState& channel, const Batch& batch) const;
  void post(ChannelState& channel, Batch& batch);
  /// Afterwards, the network reads no memory of the batch. Received messages of the batch become
  /// available to other batches.
  void cancel(ChannelState& channel, Batch& batch);
  /// On an isolated channel: ends a batch alone with `error`.
  void end(ChannelState& channel, Batch& batch, std::exception_ptr error);
  std::vector<int> unsent(const Batch& batch) const;
  /// The ranks awaited by receives and by sends, in the earliest call up to `tag`.
  Awaited awaited(const ChannelState& channel, std::uint32_t tag) const;
  /// Sets the time at which the waiting thread polls by itself: when a batch may close.
  void update_next_poll(ChannelState& channel) const;

  void on_message(const Head& head, Wire::Arrival arrival);
  void on_body(const Head& head, Wire::Arrival arrival);
  void on_payload(IncomingMessage& message);

  /// Ends operations that wait for a rank that left a channel, or all channels.
  void on_leave(ChannelState& channel, int peer);
  void on_departure(int peer);
  /// On isolated channels, ends sends to a lost rank, because the messages never leave.
  void fail_sends(int peer);
  /// Copies unsent payloads, before their domain becomes faulty.
  void copy_unsent(const FaultDomain& domain) const;
  /// Drops the messages of a faulty domain. Returns credits, because other domains continue.
  void discard(const FaultDomain& domain);
  /// Frees a channel state if this rank and all other members left the channel.
  void free_if_unused(ChannelState& channel);

 private:
  struct PendingSend {
    Batch* batch;
    ChannelState* channel;
    int peer;  // group rank in the channel
  };

  void send(ChannelState& channel, Batch& batch, Outgoing& outgoing);
  std::shared_ptr<Wire::Job> track_send(ChannelState& channel, Batch& batch, int peer);
  void keep(Wire::Payload& payload) const;
  void match_receive(ChannelState& channel, Batch& batch, Incoming& incoming);
  void check_unexpected(ChannelState& channel, const IncomingMessage& message);
  void on_matched(ChannelState& channel, IncomingMessage& message);
  void fail_mismatch(ChannelState& channel, IncomingMessage& message);
  void receive_rest(IncomingMessage& message);
  void deliver(ChannelState& channel, IncomingMessage& message);
  void return_credits(IncomingMessage& message);
  IncomingMessage& new_message();
  void drop(IncomingMessage& message);
  void drop_unexpected(ChannelState& channel);
  void drop_held(int peer, const ChannelState* channel);
  void fail_orphaned(ChannelState& channel);
  void fail_batch(ChannelState& channel, Batch& batch, int peer);
  void wake_for(ChannelState& channel, const Batch& batch);
  Clock::time_point completion_time(const Batch& batch) const;

  const Core core_;
  FaultDomains& faults_;
  FlowControl& flow_;
  std::deque<IncomingMessage> messages_;
  std::vector<IncomingMessage*> free_messages_;
  std::map<const Wire::Job*, PendingSend> sends_;  // counted sends of active batches
};

}  // namespace tersor::host
