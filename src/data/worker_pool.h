#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace dkfac::data {

/// Returns the number of workers; 0 means the number of cores, at most 16.
[[nodiscard]] int photo_workers(int wanted);

/// Thread pool that processes the items of a batch; the caller's thread is one of the workers. The
/// threads hold no OpenMP threads and sleep between calls.
class WorkerPool {
 public:
  /// Throws Error when the system does not allow so many threads.
  explicit WorkerPool(int workers);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  [[nodiscard]] int workers() const { return static_cast<int>(threads_.size()) + 1; }
  /// Calls body(worker, item) for every item in [0, items), each on the next free worker. After an
  /// exception no further items are begun. The exception of the lowest item is rethrown, which is
  /// deterministic. Polls the caller's WaitWatches.
  void run(std::int64_t items, const std::function<void(int worker, std::int64_t item)>& body);

 private:
  void end();
  void serve(int worker);
  void work(int worker, std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;
  std::condition_variable begin_, done_;
  const std::function<void(int, std::int64_t)>* body_ = nullptr;
  std::int64_t next_ = 0, items_ = 0, busy_ = 0, failed_item_ = -1;
  std::exception_ptr failure_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace dkfac::data
