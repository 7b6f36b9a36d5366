#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "dkfac/core/stream.h"

#include "comm/transport/host_communicator.h"

namespace dkfac::comm {

class InProcessGroup;

/// Result of a split for one rank; the group is null for color < 0.
struct SplitResult {
  std::shared_ptr<InProcessGroup> group;
  int rank = 0;
};

/// Events of one rank in a collective on device memory. `ready`: peers may access its buffers.
/// `done`: it no longer accesses theirs. Peers order their streams after both before the collective
/// is released, so each is recorded once in it.
struct DeviceSide {
  explicit DeviceSide(Device device) : ready(device), done(device) {}
  Event ready, done;
};

/// State of one collective that its ranks share. `calls` borrows the ranks' memory: it may be read
/// only between begin_move and end_move.
struct Rendezvous {
  std::vector<const HostCall*> calls;              ///< By rank; null until the rank arrives.
  std::vector<char> finished;                      ///< By rank.
  std::vector<std::shared_ptr<DeviceSide>> sides;  ///< By rank; for device memory only.
  std::vector<SplitResult> splits;                 ///< By rank; of a split, once all have arrived.
  int arrived = 0, done = 0, released = 0;
  int moving = 0;  ///< Ranks that are accessing memory of other ranks.
};

/// State shared by the ranks of one in-process communicator. A group made by a split keeps its
/// parent alive and shares its failure, so that an abort reaches ranks that wait inside a subgroup.
/// Any rank may call any function at any time; it holds the lock briefly. Functions that are not
/// noexcept throw the group's failure as CommError.
class InProcessGroup : public std::enable_shared_from_this<InProcessGroup> {
 public:
  /// `job_ranks`: the ranks of the members in the group from which all were split; messages name
  /// these.
  InProcessGroup(std::vector<int> job_ranks, std::shared_ptr<InProcessGroup> parent);

  /// Registers the call of a rank under call.info.sequence. `call` stays valid until release or
  /// withdraw. `side` is null for host memory.
  void arrive(int rank, const HostCall& call, std::shared_ptr<DeviceSide> side);
  /// Returns the shared state once the calls of all ranks have arrived and agree, else null.
  [[nodiscard]] Rendezvous* rendezvous(const HostCall& call);
  void begin_move(Rendezvous& point);
  void end_move(Rendezvous& point) noexcept;
  /// Marks this rank's part of the data movement as done.
  void finish(int rank, Rendezvous& point);
  /// Whether all ranks have finished, so that none needs this rank's memory any more.
  [[nodiscard]] bool all_finished(const Rendezvous& point);
  /// Releases the shared state for this rank, after all_finished().
  void release(const HostCall& call) noexcept;
  /// Withdraws a call: fails the group unless it has failed, and returns when no host thread uses
  /// `call` any more. The stream of `call` then follows remaining work of the device.
  void withdraw(int rank, const HostCall& call, std::string_view reason) noexcept;
  /// Fails the group because `rank` waited `limit_s` seconds; names the missing ranks.
  [[noreturn]] void time_out(int rank, const HostCall& call, double limit_s);

  void throw_if_failed();
  [[nodiscard]] bool failed() const noexcept;
  void fail(std::string_view reason) noexcept;
  /// Records that the rank issues no call after number `last`.
  void leave(int rank, std::uint64_t last) noexcept;
  [[nodiscard]] int size() const { return size_; }
  [[nodiscard]] int job_rank(int rank) const { return job_ranks_[static_cast<std::size_t>(rank)]; }

 private:
  using Lock = std::unique_lock<std::mutex>;
  Rendezvous& rendezvous_of(std::uint64_t sequence);
  void throw_if_failed(const Lock& held);
  [[noreturn]] void fail_and_throw(const Lock& held, std::string text);
  [[nodiscard]] std::vector<int> missing(const Rendezvous& point) const;
  [[nodiscard]] std::string failure_of_parent();

  const std::vector<int> job_ranks_;
  const int size_;
  const std::shared_ptr<InProcessGroup> parent_;
  std::atomic<bool> failed_ = false;  ///< Equal to !failure_.empty(), readable without the lock.
  std::mutex mutex_;
  std::condition_variable idle_;
  std::string failure_;
  std::map<std::uint64_t, Rendezvous> rendezvous_;
  std::vector<std::uint64_t> last_call_;  ///< By rank: kPresent, or its last call if it has left.
};

}  // namespace dkfac::comm
