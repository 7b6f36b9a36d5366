#include "core/shared/host_queue.h"

#include <utility>

#include "dkfac/core/error.h"

#include "core/shared/backoff.h"

namespace dkfac {

std::shared_ptr<HostQueue> HostQueue::make() { return std::shared_ptr<HostQueue>(new HostQueue()); }

HostQueue::Ticket HostQueue::submit(std::unique_ptr<HostTask> task) {
  if (error_) std::rethrow_exception(error_);
  DKFAC_CHECK(task != nullptr, "[host_queue] submitted task is null");
  tasks_.push_back(std::move(task));
  return ++submitted_;
}

bool HostQueue::progress() {
  if (error_) std::rethrow_exception(error_);
  if (tasks_.empty()) return true;
  try {
    if (tasks_.front()->advance()) {
      tasks_.pop_front();
      ++completed_;
    }
  } catch (...) {
    fail();
    throw;
  }
  return tasks_.empty();
}

void HostQueue::wait(Ticket ticket) {
  DKFAC_CHECK(ticket <= submitted_, "[host_queue] wait for ticket ", ticket, "; only ", submitted_,
              " were submitted");
  if (error_) std::rethrow_exception(error_);
  Backoff backoff;
  while (!done(ticket)) backoff.poll([this] { progress(); });
}

void HostQueue::cancel() noexcept {
  if (tasks_.empty()) return;
  try {
    throw Error("[host_queue] the stream was destroyed before its work was done; synchronize it");
  } catch (...) {
    fail();
  }
}

// Called from an exception handler.
void HostQueue::fail() noexcept {
  error_ = std::current_exception();
  // Moved out first: a task's destructor may access this queue.
  auto dropped = std::exchange(tasks_, {});
  while (!dropped.empty()) dropped.pop_back();
}

}  // namespace dkfac
