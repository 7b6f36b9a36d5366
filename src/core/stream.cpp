#include "dkfac/core/stream.h"

#include <utility>

#include "dkfac/core/error.h"

#include "core/cuda/runtime.h"
#include "core/shared/backoff.h"
#include "core/shared/host_queue.h"
#include "core/shared/wait_watch.h"

namespace dkfac {

void Stream::synchronize() const {
  if (device_.is_cuda()) {
    if (!has_wait_watches()) return cuda::synchronize(device_, native_);
    Event end(device_);
    end.record(*this);
    return cpu().wait(end);
  }
  if (queue_ != nullptr) queue_->drain();
}

void Stream::wait(const Event& event) const {
  if (event.device_.is_cuda()) {
    if (event.native_ == nullptr) return;
    if (device_.is_cuda()) return cuda::stream_wait(device_, native_, event.native_.get());
    if (!has_wait_watches()) return cuda::synchronize(event.device_, event.native_.get());
    Backoff backoff;
    while (!event.done()) backoff.poll(poll_wait_watches);
    return;
  }
  if (!event.done()) event.queue_->wait(event.ticket_);
}

bool Stream::progress() const { return queue_ == nullptr || queue_->progress(); }

void DestroyEvent::operator()(CUevent_st* event) const noexcept {
  cuda::destroy_event(device, event);
}

Event::Event(Device device)
    : device_(device), native_(device.is_cuda() ? cuda::create_event(device) : nullptr, {device}) {}

void Event::record(Stream stream) {
  DKFAC_CHECK(stream.device() == device_, "[event] an event of ", device_,
              " cannot be recorded on a stream of ", stream.device());
  if (device_.is_cuda()) return cuda::record(device_, native_.get(), stream.native());
  if (stream.queue() == nullptr) {
    queue_.reset();
    ticket_ = 0;
    return;
  }
  queue_ = stream.queue()->shared_from_this();
  ticket_ = queue_->last();
}

bool Event::done() const {
  if (native_ != nullptr) return cuda::done(device_, native_.get());
  return queue_ == nullptr || queue_->done(ticket_);
}

OwnedStream::OwnedStream(Device device, Priority priority) : device_(device) {
  if (device_.is_cuda()) {
    native_ = cuda::create_stream(device_, priority);
  } else {
    queue_ = HostQueue::make();
  }
}

OwnedStream::~OwnedStream() {
  if (queue_ != nullptr) queue_->cancel();
  if (native_ != nullptr) cuda::destroy_stream(device_, native_);
}

OwnedStream::OwnedStream(OwnedStream&& other) noexcept
    : device_(other.device_),
      queue_(std::move(other.queue_)),
      native_(std::exchange(other.native_, nullptr)) {}

OwnedStream& OwnedStream::operator=(OwnedStream&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(queue_, other.queue_);
  std::swap(native_, other.native_);
  return *this;
}

Stream OwnedStream::view() const {
  if (device_.is_cuda()) return Stream::cuda(native_, device_.index);
  DKFAC_CHECK(queue_ != nullptr, "[stream] this stream was moved from");
  return Stream::host(*queue_);
}

}  // namespace dkfac
