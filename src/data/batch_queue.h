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

/// Batches made by a thread ahead of time into a bounded set of slots. A slot that was taken is the
/// caller's until it is given back. Used by one thread beside its own; may be destroyed at any
/// time.
class BatchQueue {
 public:
  /// slots: of which the caller holds some. ctx: to whose device they will be copied.
  BatchQueue(std::unique_ptr<BatchMaker> maker, std::size_t slots, Context& ctx);
  ~BatchQueue();
  BatchQueue(const BatchQueue&) = delete;
  BatchQueue& operator=(const BatchQueue&) = delete;

  [[nodiscard]] std::int64_t batches() const { return maker_->batches(); }
  /// What was left of the epoch before is dropped; what was taken stays taken. Arguments as
  /// Loader::start_epoch().
  void start_epoch(std::int64_t epoch, std::int64_t first_batch);
  /// The slot of the next batch; nothing at the end of the epoch. Throws what the thread threw,
  /// after the batches before it, at each call until start_epoch().
  std::optional<std::size_t> take();
  /// Only one that has been made already.
  std::optional<std::size_t> try_take();
  [[nodiscard]] MadeBatch& at(std::size_t slot) { return slots_[slot]; }
  void give_back(std::size_t slot);
  [[nodiscard]] LoaderStatistics statistics() const;

 private:
  void work();
  void produce(std::int64_t this_epoch, std::int64_t first, std::uint64_t mine);
  std::size_t pop_ready();

  std::unique_ptr<BatchMaker> maker_;  ///< Used by the thread alone, but for what is constant.

  // The thread owns the slot that it fills, the caller those that it has taken; everything below is
  // guarded by the mutex. The lists have room for every slot, so that they never allocate.
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<MadeBatch> slots_;
  std::vector<std::size_t> idle_;
  std::vector<std::size_t> ready_;  ///< Oldest first.
  std::uint64_t request_ = 0;       ///< Counts start_epoch(); work for an older one is thrown away.
  std::int64_t epoch_ = 0, first_batch_ = 0;
  bool finished_ = true;
  bool stop_ = false;
  std::int64_t made_batches_ = 0, made_images_ = 0;
  double wait_s_ = 0;
  std::exception_ptr error_;
  std::thread thread_;
};

}  // namespace dkfac::data
