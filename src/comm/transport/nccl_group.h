#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <nccl.h>

#include "dkfac/comm/nccl.h"
#include "dkfac/core/error.h"
#include "dkfac/core/stream.h"

#include "comm/transport/deadline.h"
#include "comm/transport/stream_order.h"
#include "core/shared/wait_watch.h"

namespace dkfac::comm {

/// One NCCL communicator of non-blocking calls, its bootstrap, and the watch over both. Every
/// failure aborts NCCL here and, through the bootstrap, on the other ranks.
class NcclGroup final : public WaitWatch {
 public:
  NcclGroup(std::shared_ptr<Communicator> bootstrap, Device device);
  /// Finalises, within the time limit; aborts when work is pending while an exception is on its
  /// way.
  ~NcclGroup() override;

  /// By all ranks: the group of those with this color, or null where it is < 0. Waits for the
  /// collectives under way, since NCCL splits what is idle. Where NCCL refuses on every rank, the
  /// new groups get ids of their own; what is refused on some ranks only fails.
  [[nodiscard]] std::shared_ptr<NcclGroup> split(int color, int key);

  /// Before the first NCCL call of a collective: throws if the group has failed, has the calling
  /// thread's waits watched, and lets the stream follow the collectives before.
  void begin(const std::shared_ptr<NcclGroup>& self, const CallInfo& info, const Stream& stream);
  /// Runs body(comm), which makes NCCL calls and returns the first code that is neither success nor
  /// "in progress", as one group.
  template <class Body>
  void group(Body body) {
    check(ncclGroupStart(), "ncclGroupStart");
    const ncclResult_t inside = body(comm_);
    const ncclResult_t end = ncclGroupEnd();
    if (inside != ncclSuccess && inside != ncclInProgress) check(inside, "a call of the group");
    settle(end, "ncclGroupEnd");
  }
  /// After the last one.
  void end(const CallInfo& info, const Stream& stream);
  /// Instead of end(), when something has been thrown: part of the collective may be on the stream.
  void give_up(const Stream& stream) noexcept;
  /// `stream` follows all collectives so far.
  void let_follow(const Stream& stream) const noexcept;

  /// Throws what has failed here or elsewhere, also a collective that is over its time limit.
  void look();
  void poll() override;
  void abort(std::string_view reason) noexcept;
  /// Throws CommError on this rank, and makes the others fail.
  [[noreturn]] void fail(std::string text);
  /// Returns body(bootstrap()). A CommError of the bootstrap aborts NCCL before it goes on: what
  /// unwinds from it may wait for the device, as the handles of contexts do.
  template <class Body>
  auto on_bootstrap(Body body) {
    try {
      return body(*bootstrap_);
    } catch (const CommError& error) {
      fail_here(error.what());
    }
  }
  [[nodiscard]] bool failed() const { return !failure_.empty() || bootstrap_->failed(); }
  [[nodiscard]] Communicator& bootstrap() const { return *bootstrap_; }
  [[nodiscard]] Device device() const { return device_; }

 private:
  /// Without NCCL so far.
  struct Empty {};
  NcclGroup(std::shared_ptr<Communicator> bootstrap, Device device, Empty)
      : bootstrap_(std::move(bootstrap)), device_(device), current_("split") {}
  struct Pending {
    CallInfo info;
    Event event;
    Deadline deadline;
  };
  void check(ncclResult_t code, const char* call);
  /// Waits until a non-blocking call has done its part on the host.
  void settle(ncclResult_t code, const char* call) { settle(comm_, code, call); }
  void settle(ncclComm_t comm, ncclResult_t code, const char* call);
  /// How many ranks say so.
  [[nodiscard]] int count_over_ranks(bool yes);
  void look_at_peers();
  void look_at_pending();
  void drop() noexcept;
  [[noreturn]] void fail_here(std::string text);

  std::shared_ptr<Communicator> bootstrap_;
  Device device_;
  ncclComm_t comm_ = nullptr;
  std::string failure_;
  std::string current_;                ///< What is being issued.
  std::atomic<std::thread::id> user_;  ///< Asked by the waits of every thread that was it.
  StreamOrder order_;
  std::deque<Pending> pending_;
  std::vector<Event> free_events_;
};

}  // namespace dkfac::comm
