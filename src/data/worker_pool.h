#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace dkfac::data {

/// 0 stands for the cores that there are, up to 16.
[[nodiscard]] int photo_workers(int wanted);

/// Threads that share out the items of a batch, the caller's among them. They hold no OpenMP
/// threads and sleep in between.
class WorkerPool {
 public:
  explicit WorkerPool(int workers);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  [[nodiscard]] int workers() const { return static_cast<int>(threads_.size()) + 1; }
  /// body(worker, item) for every item in [0, items), each by whichever worker is free. Once one
  /// throws no further ones are begun; of the exceptions that of the lowest item is rethrown, which
  /// is the same one every time. Polls the caller's WaitWatches.
  void run(std::int64_t items, const std::function<void(int worker, std::int64_t item)>& body);

 private:
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
