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

/// What a split gives one rank; the group is null for color < 0.
struct SplitShare {
  std::shared_ptr<InProcessGroup> group;
  int rank = 0;
};

/// When a rank's device buffers may be touched by its peers, and when it has touched theirs. Peers
/// order their streams behind both while they are in the meeting, so each is recorded once in it.
struct DeviceSide {
  explicit DeviceSide(Device device) : ready(device), done(device) {}
  Event ready, done;
};

/// One collective as its ranks meet in it. `calls` borrows the ranks' memory: it may be read only
/// between begin_move and end_move.
struct MeetingPoint {
  std::vector<const HostCall*> calls;              ///< By rank; null until the rank arrives.
  std::vector<char> finished;                      ///< By rank.
  std::vector<std::shared_ptr<DeviceSide>> sides;  ///< By rank; of device memory.
  std::vector<SplitShare> shares;                  ///< By rank; of a split, once all have arrived.
  int arrived = 0, done = 0, released = 0;
  int moving = 0;  ///< Ranks that are reading or writing memory of others right now.
};

/// State shared by the ranks of one in-process communicator. A child of a split keeps its parent
/// alive and shares its failure, so that an abort reaches ranks that wait inside a subgroup. Every
/// function may be called by any rank at any time and holds the lock briefly; all but those marked
/// noexcept throw the group's failure as CommError.
class InProcessGroup : public std::enable_shared_from_this<InProcessGroup> {
 public:
  InProcessGroup(int size, std::shared_ptr<InProcessGroup> parent);

  /// The rank arrives at call.info.sequence. `call` stays valid until release or withdraw. `side`:
  /// null for host memory.
  void arrive(int rank, const HostCall& call, std::shared_ptr<DeviceSide> side);
  /// The meeting once everybody is there and agrees, else null.
  [[nodiscard]] MeetingPoint* meet(const HostCall& call);
  void begin_move(MeetingPoint& point);
  void end_move(MeetingPoint& point) noexcept;
  /// This rank's share of the movement is done.
  void finish(int rank, MeetingPoint& point);
  /// True once all have finished; nobody needs the rank's memory any more.
  [[nodiscard]] bool all_finished(const MeetingPoint& point);
  /// The rank leaves the meeting, after all_finished().
  void release(const HostCall& call) noexcept;
  /// Gives up: fails the group unless it has failed, and returns when no rank uses `call` any more,
  /// but for work of the device, which the stream of `call` then follows.
  void withdraw(int rank, const HostCall& call, std::string_view reason) noexcept;
  /// Fails the group because `rank` waited `limit_s` seconds; names those who are missing.
  [[noreturn]] void time_out(int rank, const HostCall& call, double limit_s);

  void throw_if_failed();
  [[nodiscard]] bool failed() const noexcept;
  void fail(std::string_view reason) noexcept;
  /// The rank issues nothing after call number `last`.
  void leave(int rank, std::uint64_t last) noexcept;
  [[nodiscard]] int size() const { return size_; }

 private:
  using Lock = std::unique_lock<std::mutex>;
  MeetingPoint& point_of(std::uint64_t sequence);
  void throw_if_failed(const Lock& held);
  [[noreturn]] void fail_and_throw(const Lock& held, std::string text);
  [[nodiscard]] std::vector<int> missing(const MeetingPoint& point) const;
  [[nodiscard]] std::string failure_of_parent();

  const int size_;
  const std::shared_ptr<InProcessGroup> parent_;
  std::atomic<bool> failed_ = false;  ///< Same as !failure_.empty(), readable without the lock.
  std::mutex mutex_;
  std::condition_variable idle_;
  std::string failure_;
  std::map<std::uint64_t, MeetingPoint> points_;
  std::vector<std::uint64_t> last_call_;  ///< By rank: kPresent, or the last call of one that left.
};

}  // namespace dkfac::comm
