// What a reducer of device gradients keeps beside what one of host gradients has: a stream of its
// own between the trainer's work, and on the device the words of the state and a flag for each
// parameter.
#pragma once

#include "kernels/device/device_memory.h"
#include "kernels/device/event.h"

#include <tersor/buffer.h>
#include <tersor/codec.h>
#include <tersor/stream.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace tersor {

class DeviceSide {
 public:
  /// Flags are 1, words as in a new StateWords. Waits for the device.
  DeviceSide(StreamView trainer, std::size_t parameters);

  StreamView stream() const { return stream_.view(); }
  StreamView trainer() const { return trainer_; }
  const StateWords* words() const { return reinterpret_cast<StateWords*>(words_.pointer()); }
  std::uint64_t* overflows() { return &reinterpret_cast<StateWords*>(words_.pointer())->overflows; }
  const std::uint32_t* active(std::size_t parameter) const;

  /// While it lives, the calling thread's calls are for the reducer's device.
  class Entry {
   public:
    explicit Entry(const DeviceSide& side);
    ~Entry();
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;

   private:
    int before_;
  };
  /// For a thread that does nothing else, beside a trainer that may capture its own streams.
  void become_worker() const;

  /// What the reducer queues from now on comes after what the trainer queued so far; and the other
  /// way round.
  void follow_trainer();
  void lead_trainer();

  /// Queues a parameter's flag, where it changes.
  void set_active(std::size_t parameter, bool active);
  /// Queues step + 1.
  void advance_step();

  /// These wait until the reducer's stream has nothing more to do.
  StateWords read_words() const;
  void write_step(std::uint32_t step);
  void synchronize() const { stream_.synchronize(); }

 private:
  StreamView trainer_;
  Stream stream_;
  int device_;
  kernels::Event begun_, ended_;
  Buffer words_, active_;
  std::vector<bool> is_active_;
  kernels::PinnedBuffer constants_;  ///< the flags 0 and 1, for copies
};

}  // namespace tersor
