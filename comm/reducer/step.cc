#include "comm/reducer/step.h"

#include <algorithm>

namespace tersor {

void ReducerStep::set_parameters(std::size_t count, SendingOrder sending) {
  sending_ = sending;
  reset_order();
  ready_.resize(count, false);
  done_.resize(count, number_);
}

bool ReducerStep::untouched() const {
  return !closed_ && std::ranges::find(ready_, true) == ready_.end();
}

bool ReducerStep::is_requested(Parameter parameter) const {
  if (sending_ == SendingOrder::kReadyOrder) return ready_[parameter];
  return order_known_ &&
         std::none_of(messages_.begin() + static_cast<std::ptrdiff_t>(next_message_),
                      messages_.end(), [&](const Order& message) {
                        return std::ranges::find(message, parameter) != message.end();
                      });
}

// Messages are sent in the order known to all ranks: a message is requested once all earlier
// messages are requested and its parameters are ready.
bool ReducerStep::request_ready() {
  if (!order_known_) return false;
  const std::size_t before = next_message_;
  const auto parameter_ready = [this](Parameter parameter) { return is_ready(parameter); };
  while (next_message_ < messages_.size() &&
         std::ranges::all_of(messages_[next_message_], parameter_ready))
    requested_.push_back(static_cast<std::uint32_t>(next_message_++));
  return next_message_ != before;
}

bool ReducerStep::ready(Parameter parameter) {
  awaited_ = true;
  ready_[parameter] = true;
  sequence_.push_back(parameter);
  return request_ready() || agreement_pending();
}

bool ReducerStep::set_order(Order order, Messages messages) {
  order_ = std::move(order);
  messages_ = std::move(messages);
  order_known_ = true;
  return request_ready();
}

void ReducerStep::close() {
  closed_ = true;
  awaited_ = false;
  order_requested_ = !order_known_ && !agreement_pending();
}

void ReducerStep::reset_order() {
  order_known_ = sending_ == SendingOrder::kReadyOrder;
  order_.clear();
}

void ReducerStep::propose(Order order) {
  order_ = std::move(order);
  order_known_ = false;
}

void ReducerStep::request_agreement() {
  if (agreement_ != LoadAgreement::kNone) return;
  agreement_ = LoadAgreement::kRequested;
  order_known_ = sending_ == SendingOrder::kReadyOrder;
}

void ReducerStep::agree() {
  agreement_ = LoadAgreement::kReached;
  order_requested_ = closed_ && !order_known_;
  changed_ = true;
}

std::uint32_t ReducerStep::add_message(Order parameters) {
  messages_.push_back(std::move(parameters));
  return static_cast<std::uint32_t>(messages_.size() - 1);
}

bool ReducerStep::request(const Order& parameters, std::span<const std::uint32_t> messages) {
  awaited_ = true;
  for (const Parameter parameter : parameters) ready_[parameter] = true;
  requested_.insert(requested_.end(), messages.begin(), messages.end());
  next_message_ += messages.size();
  return !messages.empty() || agreement_pending();
}

std::optional<std::uint32_t> ReducerStep::take_requested() {
  if (requested_.empty() || agreement_pending()) return std::nullopt;
  const std::uint32_t message = requested_.front();
  requested_.pop_front();
  return message;
}

void ReducerStep::set_done(std::uint32_t message) {
  for (const Parameter parameter : messages_[message]) done_[parameter] = number_ + 1;
  messages_done_ += 1;
  changed_ = true;
}

void ReducerStep::complete() {
  number_ += 1;
  ready_.assign(ready_.size(), false);
  done_.assign(done_.size(), number_);
  sequence_.clear();
  next_message_ = 0;
  messages_done_ = 0;
  closed_ = false;
  order_requested_ = false;
  agreement_ = LoadAgreement::kNone;
  changed_ = true;
}

void ReducerStep::fail(std::exception_ptr error) {
  if (error_ == nullptr) error_ = std::move(error);
  changed_ = true;
}

void ReducerStep::rethrow() const {
  if (error_ != nullptr) std::rethrow_exception(error_);
}

}  // namespace tersor
