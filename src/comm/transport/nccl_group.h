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

#include "dkfac/comm/communicator.h"
#include "dkfac/core/error.h"
#include "dkfac/core/stream.h"

#include "comm/transport/deadline.h"
#include "comm/transport/stream_order.h"
#include "core/shared/wait_watch.h"

namespace dkfac::comm {

/// Non-blocking NCCL communicator with its bootstrap and the WaitWatch that checks both. Every
/// failure aborts NCCL on this rank and, through the bootstrap, on the other ranks.
class NcclGroup final : public WaitWatch {
 public:
  NcclGroup(std::shared_ptr<Communicator> bootstrap, Device device);
  /// Finalises NCCL within the time limit; aborts it if work is pending during stack unwinding.
  ~NcclGroup() override;

  /// Splits the group by color, collectively; null for color < 0. Waits for pending collectives,
  /// since NCCL splits idle communicators only. If ncclCommSplit is refused on every rank, the new
  /// groups are created with new NCCL ids; if it is refused on some ranks only, the group fails.
  [[nodiscard]] std::shared_ptr<NcclGroup> split(int color, int key);

  /// Begins a collective, before its first NCCL call: throws if the group has failed, registers
  /// this watch for the calling thread's waits, and orders the stream after earlier collectives.
  void begin(const std::shared_ptr<NcclGroup>& self, const CallInfo& info, const Stream& stream);
  /// Runs body(comm) as one NCCL group. It makes NCCL calls and returns the first code that is
  /// neither success nor "in progress".
  template <class Body>
  void group(Body body) {
    check(ncclGroupStart(), "ncclGroupStart");
    const ncclResult_t inside = body(comm_);
    const ncclResult_t end = ncclGroupEnd();
    if (inside != ncclSuccess && inside != ncclInProgress) check(inside, "a call of the group");
    settle(end, "ncclGroupEnd");
  }
  /// Ends a collective, after its last NCCL call.
  void end(const CallInfo& info, const Stream& stream);
  /// Replaces end() after an exception: part of the collective may be on the stream.
  void give_up(const Stream& stream) noexcept;
  /// Orders `stream` after all collectives so far.
  void let_follow(const Stream& stream) const noexcept;

  /// Throws the failure of this or another rank, or of a collective that exceeded its time limit.
  void look();
  void poll() override;
  void abort(std::string_view reason) noexcept;
  /// Throws CommError on this rank and fails the group on the others.
  [[noreturn]] void fail(std::string text);
  /// Returns body(bootstrap()). A CommError of the bootstrap aborts NCCL before it propagates:
  /// destructors may wait for the device, as those of context handles do.
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
  /// Selects the constructor that creates no NCCL communicator yet.
  struct Empty {};
  NcclGroup(std::shared_ptr<Communicator> bootstrap, Device device, Empty)
      : bootstrap_(std::move(bootstrap)), device_(device), current_("split") {}
  struct Pending {
    CallInfo info;
    Event event;
    Deadline deadline;
  };
  void check(ncclResult_t code, const char* call);
  /// Waits until the host part of a non-blocking call is complete.
  void settle(ncclResult_t code, const char* call) { settle(comm_, code, call); }
  void settle(ncclComm_t comm, ncclResult_t code, const char* call);
  /// Number of ranks that pass true.
  [[nodiscard]] int count_over_ranks(bool yes);
  void look_at_peers();
  void look_at_pending();
  void drop() noexcept;
  [[noreturn]] void fail_here(std::string text);

  std::shared_ptr<Communicator> bootstrap_;
  Device device_;
  ncclComm_t comm_ = nullptr;
  std::string failure_;
  std::string current_;                ///< Call being issued.
  std::atomic<std::thread::id> user_;  ///< Thread that called last; only its waits check NCCL.
  StreamOrder order_;
  std::deque<Pending> pending_;
  std::vector<Event> free_events_;
};

}  // namespace dkfac::comm
