#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dkfac/comm/communicator.h"

#include "comm/transport/sum_order.h"
#include "comm/transport/transfers.h"

namespace dkfac::comm {

/// Group of ranks that exchange messages: the network interface of collective_phases.h.
class PeerGroup : public std::enable_shared_from_this<PeerGroup> {
 public:
  virtual ~PeerGroup() = default;
  PeerGroup(const PeerGroup&) = delete;
  PeerGroup& operator=(const PeerGroup&) = delete;

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }

  /// Ranks of the members in the job, i.e. in the group from which this one was made, directly or
  /// over others. Messages name these: a reader looks for a process of the job.
  [[nodiscard]] std::span<const int> job_ranks() const { return members_; }
  [[nodiscard]] int job_rank(int rank) const { return job_ranks()[static_cast<std::size_t>(rank)]; }

  /// Channel of messages: data, or the comparison of calls that precedes them.
  enum class Channel : std::uint8_t { data, checks };
  /// Makes the transfers of phase 0, 1 or 2 of a call; they borrow the group.
  [[nodiscard]] virtual std::unique_ptr<Transfers> make_transfers(Channel channel,
                                                                  const CallInfo& info,
                                                                  int phase) = 0;
  /// Makes a group of the given ranks of this one, in their order, including this rank; null if
  /// `members` is empty. `id` is the same on all members, and no other group of two of them has it.
  /// Shares the failure of this group. Throws CommError if the members do not connect within
  /// options.timeout_s.
  [[nodiscard]] virtual std::shared_ptr<PeerGroup> subgroup(std::span<const int> members, int id,
                                                            const Options& options) = 0;
  /// Least unused id on this rank; shared by all groups that derive from one.
  [[nodiscard]] std::int32_t& next_id() { return *next_id_; }

  [[nodiscard]] bool failed() const { return !failure().empty(); }
  /// Polls for failure notices of peers, then throws the failure of this group or of a parent.
  void throw_if_failed() {
    look_for_notice();
    if (!failure_.empty()) throw CommError(failure_);
    if (parent_ != nullptr) parent_->throw_if_failed();
  }
  /// Records the first failure and notifies the peers without waiting for them.
  void fail(std::string_view text) noexcept {
    if (!failure_.empty()) return;
    // A failure of the parent is the cause of later failures here.
    failure_ = failed() ? failure() : std::string(text);
    send_notice();
  }
  /// Notifies the peers that this rank issues no call after number `last`.
  virtual void leave(std::uint64_t /*last*/) noexcept {}

  /// What a user has to know of its connections, in one sentence; empty: nothing.
  [[nodiscard]] virtual std::string warning() const { return {}; }

  /// The steps of this rank along the tree.
  [[nodiscard]] const std::vector<TreeStep>& tree() {
    if (tree_.empty()) tree_ = tree_steps(size_, rank_);
    return tree_;
  }

  /// Returns at least `bytes` of memory for the running collective; there is one at a time.
  [[nodiscard]] std::byte* scratch(std::size_t bytes) {
    if (scratch_.size() < bytes) scratch_.resize(bytes);
    return scratch_.data();
  }

 protected:
  PeerGroup() = default;
  /// Makes this the group of all ranks of the job.
  void make_whole(int rank, int size) {
    rank_ = rank;
    size_ = size;
    members_.resize(static_cast<std::size_t>(size));
    std::iota(members_.begin(), members_.end(), 0);
  }
  /// Makes this the group of `members` of `parent`.
  void make_part(PeerGroup& parent, std::span<const int> members) {
    parent_ = parent.shared_from_this();
    next_id_ = parent.next_id_;
    size_ = static_cast<int>(members.size());
    for (const int member : members) {
      if (member == parent.rank_) rank_ = static_cast<int>(members_.size());
      members_.push_back(parent.job_rank(member));
    }
  }

  /// Records the failure of a notice of a peer, if one has arrived.
  virtual void look_for_notice() = 0;
  /// Sends failure_ to the peers.
  virtual void send_notice() noexcept = 0;
  [[nodiscard]] const std::string& failure() const {
    return failure_.empty() && parent_ != nullptr ? parent_->failure() : failure_;
  }

  int rank_ = 0, size_ = 1;
  std::vector<int> members_;  ///< As job_ranks().
  std::string failure_;
  std::shared_ptr<PeerGroup> parent_;
  std::shared_ptr<std::int32_t> next_id_ = std::make_shared<std::int32_t>(1);
  std::vector<std::byte> scratch_;
  std::vector<TreeStep> tree_;
};

}  // namespace dkfac::comm
