#include "data/worker_pool.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "dkfac/core/error.h"
#include "dkfac/core/threads.h"

#include "core/shared/thread_start.h"
#include "core/shared/wait_watch.h"

namespace dkfac::data {

int photo_workers(int wanted) {
  constexpr int kMost = 16;
  return wanted > 0 ? wanted : std::clamp(available_cores(), 1, kMost);
}

WorkerPool::WorkerPool(int workers) {
  threads_.reserve(static_cast<std::size_t>(std::max(workers, 1)) - 1);
  try {
    for (int worker = 1; worker < workers; ++worker)
      threads_.emplace_back([this, worker] { serve(worker); });
  } catch (const std::exception& error) {  // Of the system, or no memory.
    const std::size_t begun = threads_.size() + 1;
    end();
    throw Error(detail::concat("[worker_pool] only ", begun, " of ", workers,
                               " workers could be started (", error.what(), ", ", thread_limits(),
                               "); use fewer, or raise the limit on threads or memory"));
  }
}

WorkerPool::~WorkerPool() { end(); }

/// Ends the threads, which are waiting.
void WorkerPool::end() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  begin_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void WorkerPool::serve(int worker) {
  std::unique_lock lock(mutex_);
  for (;;) {
    begin_.wait(lock, [this] { return stop_ || next_ < items_; });
    if (stop_) return;
    work(worker, lock);
  }
}

/// Processes items until none is left.
void WorkerPool::work(int worker, std::unique_lock<std::mutex>& lock) {
  while (next_ < items_) {
    const std::int64_t item = next_++;
    ++busy_;
    lock.unlock();
    std::exception_ptr failure;
    try {
      if (worker == 0) poll_wait_watches();  // The thread that called run().
      (*body_)(worker, item);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    --busy_;
    if (failure && (failed_item_ < 0 || item < failed_item_)) {
      failed_item_ = item;
      failure_ = failure;
    }
    if (failure) next_ = items_;  // All items before it have been begun.
    if (busy_ == 0 && next_ >= items_) done_.notify_all();
  }
}

void WorkerPool::run(std::int64_t items, const std::function<void(int, std::int64_t)>& body) {
  std::unique_lock lock(mutex_);
  body_ = &body;
  next_ = 0;
  items_ = items;
  failed_item_ = -1;
  begin_.notify_all();
  work(0, lock);
  done_.wait(lock, [this] { return busy_ == 0; });
  items_ = next_ = 0;
  body_ = nullptr;
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

}  // namespace dkfac::data
