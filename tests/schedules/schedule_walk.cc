// See schedule_walk.h.
#include "tests/schedules/schedule_walk.h"

#include <algorithm>

namespace tersor::testing {

Expression Expressions::find(Node node) {
  const auto [group_rank, is_new] = known_.try_emplace(node, nodes_.size());
  if (is_new) nodes_.push_back(std::move(node));
  return group_rank->second;
}

Expression Expressions::sum(const std::vector<Expression>& values) {
  return values.size() == 1 ? values.front() : find({kSum, values});
}

std::map<int, int> Expressions::contributions(Expression value) const {
  const Node& node = nodes_[value];
  if (node.kind == kGradient) return {{static_cast<int>(node.of.front()), 1}};
  std::map<int, int> all;
  for (const Expression part : node.of)
    for (const auto& [rank, times] : contributions(part)) all[rank] += times;
  return all;
}

int Expressions::encodings(Expression value) const {
  const Node& node = nodes_[value];
  if (node.kind == kGradient) return 0;
  int most = 0;
  for (const Expression part : node.of) most = std::max(most, encodings(part));
  return most + (node.kind == kEncoded ? 1 : 0);
}

std::string Expressions::text(Expression value) const {
  const Node& node = nodes_[value];
  if (node.kind == kGradient) return std::to_string(node.of.front());
  std::string text = node.kind == kSum ? "(" : node.kind == kEncoded ? "encoded(" : "bare(";
  for (const Expression part : node.of) text += this->text(part) + " ";
  return text + ")";
}

Layout flat_layout(const std::function<Schedule(const Group&)>& schedule_by, int ranks,
                   std::size_t shards) {
  Layout layout{.schedules = {}, .parts = {}, .part_count = shards};
  std::vector<std::vector<std::size_t>> parts;
  for (std::size_t shard = 0; shard < shards; ++shard) parts.push_back({shard});
  for (int rank = 0; rank < ranks; ++rank) {
    layout.schedules.push_back(schedule_by(full_group(rank, ranks)));
    layout.parts.push_back(parts);
  }
  return layout;
}

Layout grid_layout(const Grid& grid) {
  const auto shards = static_cast<std::size_t>(grid.owners());
  const auto on_grid = [&](const Group& group) { return two_shot(full_group(group.rank, grid)); };
  return flat_layout(on_grid, grid.group_size(), shards);
}

Layout hierarchical_layout(const std::vector<int>& hosts, Exchange between) {
  const auto ranks = static_cast<int>(hosts.size());
  const HostGroups groups(hosts, ranks);
  const auto host_shards = static_cast<std::size_t>(groups.host_shards());
  const auto each = static_cast<std::size_t>(shards_of(between, groups.hosts(), groups.grid()));
  Layout layout{.schedules = {}, .parts = {}, .part_count = host_shards * each};
  const auto parts_of = [&](std::size_t host_shard) {
    std::vector<std::size_t> parts;
    for (std::size_t i = 0; i < each; ++i) parts.push_back(host_shard * each + i);
    return parts;
  };
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<std::vector<std::size_t>> shards;
    for (std::size_t host_shard = 0; host_shard < host_shards; ++host_shard)
      shards.push_back(parts_of(host_shard));
    for (std::size_t i = 0; i < each; ++i)
      shards.push_back({static_cast<std::size_t>(groups.local_rank(rank)) * each + i});
    for (std::size_t host_shard = 0; host_shard < host_shards; ++host_shard)
      shards.push_back(parts_of(host_shard));
    layout.schedules.push_back(hierarchical(groups, rank, {&between, 1}));
    layout.parts.push_back(shards);
  }
  for (std::size_t host_shard = 0; host_shard < host_shards; ++host_shard) {
    layout.raw_shards.insert(host_shard);
    layout.raw_shards.insert(host_shards + each + host_shard);
  }
  return layout;
}

Layout owned_layout(const std::function<Schedule(const Group&)>& schedule_by,
                    const std::vector<Group>& all_groups) {
  Layout layout{.schedules = {}, .parts = {}, .part_count = all_groups.size()};
  for (const Group& group : all_groups) {
    layout.schedules.push_back(schedule_by(group));
    layout.parts.emplace_back();
    for (const int owner : shard_owners(group))
      layout.parts.back().push_back({static_cast<std::size_t>(owner)});
  }
  return layout;
}

Layout hierarchical_gather_layout(const std::vector<int>& hosts) {
  const HostGroups groups(hosts, static_cast<int>(hosts.size()));
  std::vector<Group> all_groups;
  for (int rank = 0; rank < groups.ranks(); ++rank)
    all_groups.push_back(hierarchical_group(groups, rank));
  Layout layout = owned_layout(all_gather, all_groups);
  layout.hosts = hosts;
  return layout;
}

Layout hierarchical_scatter_layout(const std::vector<int>& hosts) {
  const HostGroups groups(hosts, static_cast<int>(hosts.size()));
  Layout layout{.schedules = {}, .parts = {}, .part_count = hosts.size(), .hosts = hosts};
  for (int rank = 0; rank < groups.ranks(); ++rank) {
    layout.schedules.push_back(hierarchical_reduce_scatter(groups, rank));
    std::vector<std::vector<std::size_t>> shards;
    for (int group_rank = 0; group_rank < groups.host_shards(); ++group_rank) {
      const std::vector<int> owners = groups.owners(group_rank);
      shards.emplace_back(owners.begin(), owners.end());
    }
    for (const int owner : groups.owners(groups.local_rank(rank)))
      shards.push_back({static_cast<std::size_t>(owner)});
    layout.parts.push_back(std::move(shards));
  }
  for (int group_rank = 0; group_rank < groups.host_shards(); ++group_rank)
    layout.raw_shards.insert(static_cast<std::size_t>(group_rank));
  return layout;
}

std::size_t messages_of(const Grid& grid, int rank) {
  std::size_t messages = 0;
  for (int i = 0; i < grid.dimensions(); ++i) {
    const std::size_t group = grid.subgroup(rank, i).size();
    const auto owners = static_cast<std::size_t>(grid.digits()[static_cast<std::size_t>(i)]);
    if (grid.owns(rank))
      messages += owners - 1 + group - 1;
    else
      messages += group == 0 ? 0 : owners;
  }
  return messages;
}

ScheduleWalk::ScheduleWalk(const Layout& layout) : layout_(layout) {
  for (int rank = 0; rank < ranks(); ++rank)
    values_.emplace_back(layout.part_count, expressions_.gradient(rank));
  in_flight_.resize(values_.size());
  received_.resize(values_.size());
  retained_.resize(values_.size());
  sent_.resize(values_.size());
}

std::string ScheduleWalk::fault(int rank, const std::string& what) const {
  return "step " + std::to_string(step_) + ", rank " + std::to_string(rank) + ": " + what;
}

// The expressions a rank makes for a shard: from the values before the step, or from received
// contents.
std::vector<Expression> ScheduleWalk::made(int rank, std::size_t shard) {
  std::vector<Expression> made;
  const std::vector<std::size_t>& shard_parts = parts(rank, shard);
  for (std::size_t i = 0; i < shard_parts.size(); ++i) {
    Expression value = values_[size(rank)][shard_parts[i]];
    if (step(rank).on_send != OnSend::kEncode) {
      std::vector<Expression> retained;
      for (const Content& content : retained_[size(rank)])
        if (content.shard == shard) retained.push_back(content.values[i]);
      value = expressions_.sum(retained);
    }
    if (step(rank).on_send != OnSend::kForward)
      value = layout_.raw_shards.contains(shard) ? expressions_.raw(value)
                                                 : expressions_.encoded(value);
    made.push_back(value);
  }
  return made;
}

void ScheduleWalk::count(int rank, const StepMessage& message) {
  Sent& sent = sent_[size(rank)];
  sent.messages += 1;
  for (std::size_t shard = message.shard; shard < message.shard + message.shards; ++shard) {
    const double share =
        static_cast<double>(parts(rank, shard).size()) / static_cast<double>(layout_.part_count);
    (layout_.raw_shards.contains(shard) ? sent.raw : sent.encoded) += share;
    const auto& hosts = layout_.hosts;
    if (!hosts.empty() && hosts[size(rank)] != hosts[size(message.peer)]) sent.abroad += share;
  }
}

std::string ScheduleWalk::open(int rank, const StepMessage& message, Contents contents) {
  if (contents.size() != message.shards)
    return fault(rank, "gets other shards from rank " + std::to_string(message.peer));
  for (std::size_t i = 0; i < contents.size(); ++i) {
    const std::size_t shard = message.shard + i * message.stride;
    if (parts(rank, shard) != parts(message.peer, contents[i].shard))
      return fault(rank, "gets another shard from rank " + std::to_string(message.peer));
    contents[i].shard = shard;
    received_[size(rank)].push_back(std::move(contents[i]));
  }
  return "";
}

std::string ScheduleWalk::deliver(int rank) {
  auto& sent_to_rank = in_flight_[size(rank)];
  received_[size(rank)].clear();
  for (const StepMessage& message : step(rank).receives) {
    const auto contents = sent_to_rank.find(message.peer);
    if (contents == sent_to_rank.end())
      return fault(rank, "waits in vain for rank " + std::to_string(message.peer));
    if (std::string what = open(rank, message, std::move(contents->second)); !what.empty())
      return what;
    sent_to_rank.erase(contents);
  }
  if (!sent_to_rank.empty())
    return fault(
        rank, "does not take what rank " + std::to_string(sent_to_rank.begin()->first) + " sends");
  const bool ordered =
      std::ranges::is_sorted(step(rank).receives, [](const StepMessage& a, const StepMessage& b) {
        return std::pair(a.shard, a.peer) < std::pair(b.shard, b.peer);
      });
  std::ranges::stable_sort(received_[size(rank)], {}, &Content::shard);
  return ordered ? "" : fault(rank, "adds in another order than that of shards and ranks");
}

void ScheduleWalk::take(int rank) {
  if (step(rank).idle() || step(rank).on_receive == OnReceive::kAbsorb) return;
  if (step(rank).on_receive == OnReceive::kRetain) {
    retained_[size(rank)] = std::move(received_[size(rank)]);
    return;
  }
  std::map<std::size_t, std::vector<Expression>> sums;  // by part
  for (const Content& content : received_[size(rank)])
    for (std::size_t i = 0; i < content.values.size(); ++i)
      sums[parts(rank, content.shard)[i]].push_back(content.values[i]);
  for (const auto& [part, values] : sums) values_[size(rank)][part] = expressions_.sum(values);
}

// The transport's native sum over all ranks holding a part. The order is undefined.
void ScheduleWalk::add_raw() {
  std::map<std::size_t, std::vector<int>> adders;  // by part
  for (int rank = 0; rank < ranks(); ++rank)
    for (std::size_t i = 0; step(rank).is_native() && i < step(rank).shard_count; ++i)
      for (const std::size_t part : parts(rank, step(rank).first_shard + i))
        adders[part].push_back(rank);
  for (const auto& [part, group] : adders) {
    std::vector<Expression> values;
    for (const int rank : group) values.push_back(values_[size(rank)][part]);
    const Expression sum = expressions_.raw(expressions_.sum(values));
    for (const int rank : group)
      if (step(rank).on_receive != OnReceive::kAbsorb) values_[size(rank)][part] = sum;
  }
}

std::string ScheduleWalk::run() {
  const std::size_t steps = layout_.schedules.front().size();
  for (int rank = 0; rank < ranks(); ++rank)
    if (layout_.schedules[size(rank)].size() != steps) return fault(rank, "has other steps");
  for (step_ = 0; step_ < steps; ++step_) {
    for (int rank = 0; rank < ranks(); ++rank)
      for (const StepMessage& message : step(rank).sends) {
        Contents contents;
        for (std::size_t shard = message.shard; shard < message.shard + message.shards; ++shard)
          contents.push_back({shard, rank, made(rank, shard)});
        if (!in_flight_[size(message.peer)].emplace(rank, std::move(contents)).second)
          return fault(rank, "sends twice to rank " + std::to_string(message.peer));
        if (message.peer != rank) count(rank, message);
      }
    for (int rank = 0; rank < ranks(); ++rank)
      if (std::string what = deliver(rank); !what.empty()) return what;
    add_raw();
    for (int rank = 0; rank < ranks(); ++rank) take(rank);
  }
  return "";
}

}  // namespace tersor::testing
