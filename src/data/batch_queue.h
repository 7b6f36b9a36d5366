#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "data/batch_maker.h"

namespace dkfac::data {

/// Queue of batches that a thread prefetches into a bounded set of buffers. The caller owns a
/// buffer between take() and give_back(). Used by one thread besides its own; may be destroyed at
/// any time.
class BatchQueue {
 public:
  /// `buffers` includes those owned by the caller. Batches will be copied to the device of `ctx`.
  BatchQueue(std::unique_ptr<BatchMaker> maker, std::size_t buffers, Context& ctx);
  ~BatchQueue();
  BatchQueue(const BatchQueue&) = delete;
  BatchQueue& operator=(const BatchQueue&) = delete;

  [[nodiscard]] std::int64_t batches() const { return maker_->batches(); }
  /// Starts an epoch and drops the remaining batches of the previous one. Buffers owned by the
  /// caller are not affected. Arguments as for Loader::start_epoch().
  void start_epoch(std::int64_t epoch, std::int64_t first_batch);
  /// Returns the buffer of the next batch; nothing at the end of the epoch. Rethrows an exception
  /// of the thread, after the batches before it, at each call until start_epoch().
  std::optional<std::size_t> take();
  /// Returns the buffer of the next batch if it is ready; never blocks.
  std::optional<std::size_t> try_take();
  [[nodiscard]] MadeBatch& at(std::size_t buffer) { return buffers_[buffer]; }
  void give_back(std::size_t buffer);
  [[nodiscard]] LoaderStatistics statistics() const;

 private:
  void work();
  void produce(std::int64_t this_epoch, std::int64_t first, std::uint64_t mine);
  std::size_t pop_ready();

  std::unique_ptr<BatchMaker> maker_;  ///< Used by the thread only, except constant properties.

  // The thread owns the buffer that it fills, and the caller those that it has taken; everything
  // below is guarded by the mutex. The lists have capacity for every buffer, so they never
  // allocate.
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<MadeBatch> buffers_;
  std::vector<std::size_t> idle_;
  std::vector<std::size_t> ready_;  ///< Oldest first.
  std::uint64_t request_ = 0;       ///< Counts start_epoch(); work for an older one is discarded.
  std::int64_t epoch_ = 0, first_batch_ = 0;
  bool finished_ = true;
  bool stop_ = false;
  std::int64_t made_batches_ = 0, made_images_ = 0;
  double wait_s_ = 0;
  std::exception_ptr error_;
  std::thread thread_;
};

}  // namespace dkfac::data
