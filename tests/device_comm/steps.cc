// See steps.h.
#include "tests/device_comm/steps.h"

#include "kernels/device/device.h"
#include "kernels/device/device_memory.h"

#include <cstring>
#include <numeric>

namespace tersor::test {
namespace {

Buffer fresh_words(const Location& location) {
  Buffer words(sizeof(StateWords), location.memory);
  const StateWords fresh;
  if (location.memory == Memory::kHost) {
    std::memcpy(words.pointer(), &fresh, sizeof fresh);
    return words;
  }
  const kernels::PinnedBuffer host(sizeof fresh);
  std::memcpy(host.pointer(), &fresh, sizeof fresh);
  kernels::copy_bytes(words.pointer(), host.pointer(), sizeof fresh, location.stream);
  kernels::synchronize(location.stream);
  return words;
}

std::size_t unit_of(const Case& wanted) { return make_codec(wanted.codec)->traits().unit; }

bool has_feedback(const Case& wanted) { return make_codec(wanted.codec)->has_feedback(); }

std::size_t encoded(const Case& wanted, const Transport& transport) {
  if (!has_feedback(wanted)) return 0;
  if (wanted.hosts.empty()) return wanted.count;
  return encoded_count(wanted.count, transport.rank(), wanted.hosts, 0, unit_of(wanted));
}

std::size_t owned(const Case& wanted, const Transport& transport) {
  if (!has_feedback(wanted)) return 0;
  const int rank = transport.rank();
  const std::size_t unit = unit_of(wanted);
  if (wanted.hosts.empty())
    return owned_count(wanted.count, rank, transport.ranks(), 0, unit, wanted.dims);
  return owned_count(wanted.count, rank, wanted.hosts, 0, unit);
}

CollectiveOptions options_of(const Case& wanted, CollectiveWorkspace& workspace) {
  return {.codec = wanted.codec,
          .reduction = wanted.reduction,
          .algorithm = wanted.algorithm,
          .hosts = wanted.hosts,
          .dims = wanted.dims,
          .seed = 3,
          .chunk_count = wanted.chunk_count,
          .workspace = &workspace};
}

Values gradient_of(int rank, int step, std::size_t count) {
  return testing::gaussian(count, static_cast<std::uint64_t>(100 * step + rank + 1));
}

}  // namespace

PlacedValues::PlacedValues(std::size_t count, Dtype dtype, const Location& location)
    : count_(count),
      dtype_(dtype),
      location_(location),
      memory_(count * dtype_bytes(dtype), location.memory),
      pinned_(location.memory == Memory::kDevice ? memory_.bytes() : 0) {
  write(Values(count, 0.0f));
}

void PlacedValues::write(const Values& values) {
  if (location_.memory == Memory::kHost) return from_floats(values, 1.0f, span(), {});
  kernels::synchronize(location_.stream);  // earlier writes no longer use pinned_
  from_floats(values, 1.0f, {pinned_.pointer(), count_, dtype_, Memory::kHost}, {});
  kernels::copy_bytes(memory_.pointer(), pinned_.pointer(), memory_.bytes(), location_.stream);
}

PlacedState::PlacedState(const Case& wanted, const Transport& transport, const Location& location)
    : location_(location),
      residual_(encoded(wanted, transport), Dtype::kF32, location),
      owner_(owned(wanted, transport), Dtype::kF32, location),
      words_(fresh_words(location)) {
  state_ = {residual_.span(), owner_.span(), reinterpret_cast<StateWords*>(words_.pointer())};
}

Values PlacedState::read() const {
  Values all = residual_.read();
  append(all, owner_.read());
  return all;
}

std::uint32_t PlacedState::step() const {
  StateWords words;
  if (location_.memory == Memory::kHost) {
    std::memcpy(&words, words_.pointer(), sizeof words);
    return words.step;
  }
  const kernels::PinnedBuffer host(sizeof words);
  kernels::copy_bytes(host.pointer(), words_.pointer(), sizeof words, location_.stream);
  kernels::synchronize(location_.stream);
  std::memcpy(&words, host.pointer(), sizeof words);
  return words.step;
}

Values allreduce_steps(const Case& wanted, Transport& transport, const Location& location) {
  PlacedValues gradient(wanted.count, wanted.dtype, location);
  const PlacedState state(wanted, transport, location);
  CollectiveWorkspace workspace;
  CollectiveOptions options = options_of(wanted, workspace);
  if (has_feedback(wanted)) options.state = &state.state();
  Values all;
  for (int step = 0; step < wanted.steps; ++step) {
    gradient.write(gradient_of(transport.rank(), step, wanted.count));
    allreduce(transport, gradient.span(), options, location.stream);
    append(all, gradient.read());
  }
  append(all, state.read());
  all.push_back(static_cast<float>(state.step()));
  return all;
}

Values reduce_scatter_steps(const Case& wanted, Transport& transport, const Location& location) {
  const std::size_t count = wanted.count * static_cast<std::size_t>(transport.ranks());
  PlacedValues input(count, wanted.dtype, location), shard(wanted.count, wanted.dtype, location);
  CollectiveWorkspace workspace;
  Values all;
  for (int step = 0; step < wanted.steps; ++step) {
    input.write(gradient_of(transport.rank(), step, count));
    reduce_scatter(transport, input.span(), shard.span(), options_of(wanted, workspace),
                   location.stream);
    append(all, shard.read());
  }
  return all;
}

Values allgather_steps(const Case& wanted, Transport& transport, const Location& location) {
  const std::size_t count = wanted.count * static_cast<std::size_t>(transport.ranks());
  PlacedValues shard(wanted.count, wanted.dtype, location), output(count, wanted.dtype, location);
  CollectiveWorkspace workspace;
  Values all;
  for (int step = 0; step < wanted.steps; ++step) {
    shard.write(gradient_of(transport.rank(), step, wanted.count));
    allgather(transport, shard.span(), output.span(), options_of(wanted, workspace),
              location.stream);
    append(all, output.read());
  }
  return all;
}

Values all_to_all_steps(const Case& wanted, Transport& transport, const Location& location) {
  CollectiveWorkspace workspace;
  Values all;
  for (int step = 0; step < wanted.steps; ++step) {
    std::vector<std::size_t> rows;  // to each peer, and as many from each peer
    for (int peer = 0; peer < transport.ranks(); ++peer)
      rows.push_back(static_cast<std::size_t>((transport.rank() + peer + step) % 3));
    const std::size_t count =
        wanted.count * std::accumulate(rows.begin(), rows.end(), std::size_t{0});
    PlacedValues input(count, wanted.dtype, location), output(count, wanted.dtype, location);
    input.write(gradient_of(transport.rank(), step, count));
    all_to_all(transport, input.span(), output.span(), wanted.count,
               {.sent = rows, .received = rows}, options_of(wanted, workspace), location.stream);
    append(all, output.read());
  }
  return all;
}

Values rooted_steps(const Case& wanted, Transport& transport, const Location& location) {
  const int root = transport.ranks() - 1;
  const std::size_t all_count = wanted.count * static_cast<std::size_t>(transport.ranks());
  const bool is_root = transport.rank() == root;
  PlacedValues own(wanted.count, wanted.dtype, location);
  PlacedValues sum(is_root ? wanted.count : 0, wanted.dtype, location);
  PlacedValues whole(is_root ? all_count : 0, wanted.dtype, location);
  CollectiveWorkspace workspaces[4];
  Values all;
  for (int step = 0; step < wanted.steps; ++step) {
    own.write(gradient_of(transport.rank(), step, wanted.count));
    reduce(transport, own.span(), sum.span(), root, options_of(wanted, workspaces[0]),
           location.stream);
    gather(transport, own.span(), whole.span(), root, options_of(wanted, workspaces[1]),
           location.stream);
    append(all, whole.read());
    broadcast(transport, own.span(), root, options_of(wanted, workspaces[2]), location.stream);
    append(all, own.read());
    scatter(transport, whole.span(), own.span(), root, options_of(wanted, workspaces[3]),
            location.stream);
    for (const PlacedValues* values : {&own, &sum}) append(all, values->read());
  }
  return all;
}

std::vector<Values> on_hosts(Steps steps, const Case& wanted, int ranks) {
  std::vector<Values> all(static_cast<std::size_t>(ranks));
  run_ranks(ranks, {}, [&](Transport& transport) {
    all[static_cast<std::size_t>(transport.rank())] = steps(wanted, transport, {});
  });
  return all;
}

}  // namespace tersor::test
