#include "data/batch_queue.h"

#include <utility>

#include "dkfac/core/error.h"

#include "core/shared/activity_timer.h"
#include "core/shared/thread_start.h"

namespace dkfac::data {

BatchQueue::BatchQueue(std::unique_ptr<BatchMaker> maker, std::size_t buffers, Context& ctx)
    : maker_(std::move(maker)), buffers_(buffers) {
  idle_.reserve(buffers);
  ready_.reserve(buffers);
  for (std::size_t i = 0; i < buffers; ++i) {
    buffers_[i] = maker_->make_buffer(ctx);
    idle_.push_back(i);
  }
  thread_ = start_thread("loading batches", [this] { work(); });
}

BatchQueue::~BatchQueue() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void BatchQueue::work() {
  std::unique_lock lock(mutex_);
  for (std::uint64_t mine = 0;;) {
    changed_.wait(lock, [&] { return stop_ || request_ != mine; });
    if (stop_) return;
    mine = request_;
    const std::int64_t this_epoch = epoch_, first = first_batch_;
    lock.unlock();
    std::exception_ptr failure;
    try {
      produce(this_epoch, first, mine);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    if (request_ != mine) continue;
    error_ = failure;
    finished_ = true;
    changed_.notify_all();
  }
}

/// Produces the batches of one epoch until its end or until another request.
void BatchQueue::produce(std::int64_t this_epoch, std::int64_t first, std::uint64_t mine) {
  maker_->start_epoch(this_epoch);
  std::unique_lock lock(mutex_);
  for (std::int64_t batch = first; batch < maker_->batches(); ++batch) {
    changed_.wait(lock, [&] { return stop_ || request_ != mine || !idle_.empty(); });
    if (stop_ || request_ != mine) return;
    const std::size_t buffer = idle_.back();
    idle_.pop_back();
    lock.unlock();
    try {
      maker_->make(batch, buffers_[buffer]);
    } catch (...) {
      lock.lock();
      idle_.push_back(buffer);
      throw;
    }
    lock.lock();
    ++made_batches_;
    made_images_ += buffers_[buffer].count;
    if (request_ != mine) {
      idle_.push_back(buffer);
      return;
    }
    ready_.push_back(buffer);
    changed_.notify_all();
  }
}

void BatchQueue::start_epoch(std::int64_t epoch, std::int64_t first_batch) {
  maker_->check_epoch(epoch, first_batch);
  {
    const std::lock_guard lock(mutex_);
    idle_.insert(idle_.end(), ready_.begin(), ready_.end());
    ready_.clear();
    error_ = nullptr;
    finished_ = false;
    epoch_ = epoch;
    first_batch_ = first_batch;
    ++request_;
  }
  changed_.notify_all();
}

std::size_t BatchQueue::pop_ready() {
  const std::size_t buffer = ready_.front();
  ready_.erase(ready_.begin());
  return buffer;
}

std::optional<std::size_t> BatchQueue::take() {
  std::unique_lock lock(mutex_);
  DKFAC_CHECK(request_ > 0, "[loader] next() before start_epoch(); start an epoch first");
  {
    const ActivityTimer timer(wait_s_);
    changed_.wait(lock, [&] { return !ready_.empty() || finished_; });
  }
  if (!ready_.empty()) return pop_ready();
  if (error_) std::rethrow_exception(error_);
  return {};
}

std::optional<std::size_t> BatchQueue::try_take() {
  const std::lock_guard lock(mutex_);
  if (ready_.empty()) return {};
  return pop_ready();
}

void BatchQueue::give_back(std::size_t buffer) {
  {
    const std::lock_guard lock(mutex_);
    idle_.push_back(buffer);
  }
  changed_.notify_all();
}

LoaderStatistics BatchQueue::statistics() const {
  LoaderStatistics out;
  maker_->add_to(out);
  const std::lock_guard lock(mutex_);
  out.batches = made_batches_;
  out.images = made_images_;
  out.wait_s = wait_s_;
  return out;
}

}  // namespace dkfac::data
