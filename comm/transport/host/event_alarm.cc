// Implements event.h for threads waiting for more than the event. A separate file, because tests
// with a virtual clock replace event.cc.
#include <sys/eventfd.h>
#include <unistd.h>

#include "comm/transport/host/event.h"

namespace tersor::host {

Event::~Event() {
  if (alarm_ >= 0) close(alarm_);
}

void Event::wait_externally(std::uint32_t seen, const std::function<void(int alarm)>& rest) {
  if (alarm_ < 0) alarm_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  waits_externally_.store(alarm_ >= 0);
  if (signals() == seen) rest(alarm_);
  waits_externally_.store(false);
  eventfd_t ignored = 0;
  if (alarm_ >= 0) eventfd_read(alarm_, &ignored);  // a signal may have come late
}

}  // namespace tersor::host
