#include "comm/reducer/memory_backend.h"

#include "codecs/planned_codec.h"
#include "kernels/device/device.h"
#include "kernels/device/device_memory.h"
#include "kernels/device/event.h"
#include "kernels/device/marks.h"
#include "kernels/host/elementwise.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <vector>

namespace tersor {
namespace {

class HostBackend final : public MemoryBackend {
 public:
  Memory memory() const override { return Memory::kHost; }
  void bind(ExchangeContext& context) override { context.call.words = &words_; }

  void set_parameters(std::size_t count) override { active_.resize(count, 1); }
  const std::uint32_t* active(std::size_t parameter) const override { return &active_[parameter]; }
  void set_active(std::size_t parameter, bool active) override {
    active_[parameter] = active ? 1 : 0;
  }
  void advance_step() override { words_.step += 1; }
  std::uint32_t step() const override { return words_.step; }
  void set_step(std::uint32_t step) override { words_.step = step; }

  void clear(ByteSpan bytes, StreamView) const override {
    if (!bytes.empty()) std::memset(bytes.data(), 0, bytes.size());
  }
  void copy(ConstValueSpan from, ValueSpan to) const override {
    if (from.bytes() != 0) std::memmove(to.pointer(), from.pointer(), from.bytes());
  }
  void scale(ValueSpan values, float factor, StreamView) const override {
    kernels::scale_values(values.pointer(), values.dtype(), values.count(), factor);
  }
  std::vector<double> norms(std::span<const ConstValueSpan> all) const override {
    std::vector<double> norms;
    for (const ConstValueSpan& one : all)
      norms.push_back(std::sqrt(kernels::sum_of_squares(one.pointer(), one.dtype(), one.count())));
    return norms;
  }
  // All bytes are 0 if the first byte is 0 and each byte equals its successor.
  bool all_zero(ConstValueSpan values) const override {
    if (values.bytes() == 0) return true;
    const std::byte* first = values.pointer();
    return *first == std::byte{0} && std::memcmp(first, first + 1, values.bytes() - 1) == 0;
  }

 private:
  StateWords words_;
  std::deque<std::uint32_t> active_;  ///< a deque, because addresses must not change
};

constexpr std::uint32_t kFlags[] = {0, 1};

class DeviceBackend final : public MemoryBackend {
 public:
  explicit DeviceBackend(StreamView trainer)
      : trainer_(trainer),
        device_(kernels::current_device()),
        words_(sizeof(StateWords), Memory::kDevice),
        constants_(sizeof kFlags),
        seen_(sizeof(std::uint64_t)) {
    std::memcpy(constants_.pointer(), kFlags, sizeof kFlags);
    const kernels::PinnedBuffer words(sizeof(StateWords));
    const StateWords initial;
    std::memcpy(words.pointer(), &initial, sizeof initial);
    kernels::copy_bytes(words_.pointer(), words.pointer(), sizeof initial, stream());
    stream_.synchronize();
  }

  Memory memory() const override { return Memory::kDevice; }
  StreamView stream() const override { return stream_.view(); }
  StreamView trainer() const override { return trainer_; }

  void bind(ExchangeContext& context) override {
    context.set_memory(Memory::kDevice);
    context.device.stream = stream();
    context.call.words = words();
    context.device.overflows = &words()->overflows;
    context.device.fault = context.transport->fault();
  }

  void set_parameters(std::size_t count) override {
    const std::size_t before = flags_.size();
    if (count == before) return;
    const Buffer& block =
        blocks_.emplace_back((count - before) * sizeof(std::uint32_t), Memory::kDevice);
    auto* flag = reinterpret_cast<std::uint32_t*>(block.pointer());
    for (std::size_t i = before; i < count; ++i) {
      flags_.push_back(flag++);
      is_active_.push_back(false);
      set_active(i, true);
    }
    stream_.synchronize();
  }

  const std::uint32_t* active(std::size_t parameter) const override { return flags_[parameter]; }

  // Copies only changed flags.
  void set_active(std::size_t parameter, bool active) override {
    if (is_active_[parameter] == active) return;
    is_active_[parameter] = active;
    const std::size_t flag = active ? 1 : 0;
    kernels::copy_bytes(reinterpret_cast<std::byte*>(flags_[parameter]),
                        constants_.pointer() + flag * sizeof kFlags[0], sizeof kFlags[0], stream());
  }

  void advance_step() override {
    kernels::advance_step(words(), reinterpret_cast<std::uint64_t*>(seen_.pointer()), stream());
  }
  void synchronize() const override { stream_.synchronize(); }
  std::uint32_t step() const override { return read_words().step; }

  void set_step(std::uint32_t step) override {
    const kernels::PinnedBuffer host(sizeof step);
    std::memcpy(host.pointer(), &step, sizeof step);
    kernels::copy_bytes(words_.pointer() + offsetof(StateWords, step), host.pointer(), sizeof step,
                        stream());
    stream_.synchronize();
  }

  std::uint64_t overflows(std::uint64_t) const override {
    const std::uint64_t seen = *reinterpret_cast<const volatile std::uint64_t*>(seen_.pointer());
    return std::max(seen, overflows_before_) - overflows_before_;
  }
  void reset_overflows() override { overflows_before_ = read_words().overflows; }

  void clear(ByteSpan bytes, StreamView stream) const override {
    if (!bytes.empty()) kernels::zero_bytes(bytes.data(), bytes.size(), stream);
  }
  void copy(ConstValueSpan from, ValueSpan to) const override {
    if (from.bytes() != 0)
      kernels::copy_bytes(to.pointer(), from.pointer(), from.bytes(), trainer_);
  }

  // Uses the codec "none": the raw values are the values times a factor.
  void scale(ValueSpan values, float factor, StreamView stream) const override {
    const PlannedCodec codec("none", {.count = values.count(),
                                      .dtype = values.dtype(),
                                      .memory = Memory::kDevice,
                                      .stream = stream});
    codec.encode_native(values, 0, values, factor);
  }

  std::vector<double> norms(std::span<const ConstValueSpan> all) const override {
    const std::size_t bytes = all.size() * sizeof(double);
    const Buffer sums(bytes, Memory::kDevice);
    const kernels::PinnedBuffer squares(bytes);
    auto* sum = reinterpret_cast<double*>(sums.pointer());
    clear(sums.span(), stream());
    for (const ConstValueSpan& one : all) kernels::add_squares(one, sum++, stream());
    kernels::copy_bytes(squares.pointer(), sums.pointer(), bytes, stream());
    stream_.synchronize();
    std::vector<double> norms(all.size());
    std::memcpy(norms.data(), squares.pointer(), bytes);
    for (double& norm : norms) norm = std::sqrt(norm);
    return norms;
  }

  void order_after_trainer() override { kernels::order(trainer_, stream(), begun_); }
  void order_before_trainer() override { kernels::order(stream(), trainer_, ended_); }
  bool captured() const override { return kernels::capture_of(trainer_) != 0; }
  void set_up_worker() const override {
    kernels::use_device(device_);
    kernels::ignore_captures();
  }

 private:
  StateWords* words() const { return reinterpret_cast<StateWords*>(words_.pointer()); }

  StateWords read_words() const {
    const kernels::PinnedBuffer host(sizeof(StateWords));
    kernels::copy_bytes(host.pointer(), words_.pointer(), sizeof(StateWords), stream());
    stream_.synchronize();
    StateWords words;
    std::memcpy(&words, host.pointer(), sizeof words);
    return words;
  }

  StreamView trainer_;
  Stream stream_;
  int device_;
  kernels::Event begun_, ended_;
  Buffer words_;
  std::vector<Buffer> blocks_;         ///< flags, one block per growth
  std::vector<std::uint32_t*> flags_;  ///< one per parameter
  std::vector<bool> is_active_;
  kernels::PinnedBuffer constants_;     ///< the flags 0 and 1, as sources of copies
  kernels::PinnedBuffer seen_;          ///< overflows after the last completed step
  std::uint64_t overflows_before_ = 0;  ///< at the last reset
};

}  // namespace

std::unique_ptr<MemoryBackend> make_memory_backend(Memory memory, StreamView trainer) {
  if (memory == Memory::kHost) return std::make_unique<HostBackend>();
  return std::make_unique<DeviceBackend>(trainer);
}

}  // namespace tersor
