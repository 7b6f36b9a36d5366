#pragma once

#include <cstdint>
#include <deque>
#include <exception>
#include <memory>

namespace dkfac {

/// Host work that is advanced by polling.
class HostTask {
 public:
  virtual ~HostTask() = default;
  /// Does a bounded amount of work without blocking; true once the task is complete. Throws if the
  /// task failed or exceeded its time limit.
  virtual bool advance() = 0;
};

/// First-in first-out queue of host tasks, the host's counterpart of a CUDA stream. Nothing runs in
/// the background; progress() and wait() advance the task at the head. Used by one thread.
///
/// The first failure is sticky: that call and every later one throws it. The tasks after the failed
/// one are dropped, the last one first.
class HostQueue : public std::enable_shared_from_this<HostQueue> {
 public:
  using Ticket = std::uint64_t;  ///< Position in the order of submission, from 1.

  [[nodiscard]] static std::shared_ptr<HostQueue> make();
  HostQueue(const HostQueue&) = delete;
  HostQueue& operator=(const HostQueue&) = delete;

  Ticket submit(std::unique_ptr<HostTask> task);  ///< Appends the task without running it.
  bool progress();           ///< Advances once; true when nothing is left. Never blocks.
  void wait(Ticket ticket);  ///< Advances until the ticket is done, pausing as Backoff does.
  void drain() { wait(submitted_); }
  /// Drops unfinished tasks, which counts as a failure; nothing happens when there are none.
  void cancel() noexcept;
  [[nodiscard]] bool done(Ticket ticket) const { return ticket <= completed_; }
  [[nodiscard]] Ticket last() const { return submitted_; }

 private:
  HostQueue() = default;
  void fail() noexcept;

  std::deque<std::unique_ptr<HostTask>> tasks_;
  Ticket submitted_ = 0;
  Ticket completed_ = 0;
  std::exception_ptr error_;
};

}  // namespace dkfac
