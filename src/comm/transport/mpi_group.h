#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <mpi.h>

#include "comm/transport/peer_group.h"

namespace dkfac::comm {

/// Peers over MPI: two private duplicates (data; checks and failure notices) of a communicator, of
/// which the group may be a part, and the failure if there is one.
class MpiGroup final : public PeerGroup {
 public:
  /// All ranks of `comm`. Collective over it; fails after options.timeout_s.
  static std::shared_ptr<MpiGroup> duplicate(MPI_Comm comm, const Options& options);
  ~MpiGroup() override;
  MpiGroup(const MpiGroup&) = delete;
  MpiGroup& operator=(const MpiGroup&) = delete;

  [[nodiscard]] std::unique_ptr<Transfers> make_transfers(Channel channel, const CallInfo& info,
                                                          int phase) override;
  /// Over the same duplicates, with message tags of its own: nothing is asked of MPI.
  [[nodiscard]] std::shared_ptr<PeerGroup> subgroup(std::span<const int> members, int id,
                                                    const Options& options) override;
  [[nodiscard]] bool failed() const override { return !failure().empty(); }
  void throw_if_failed() override;
  void fail(std::string_view text) noexcept override;

 private:
  MpiGroup() = default;
  void copy(MPI_Comm comm, const Options& options);
  void look_for_notice();
  [[nodiscard]] const std::string& failure() const;
  void send_notice() noexcept;
  [[nodiscard]] int notice_tag() const;
  [[nodiscard]] int tag(std::uint64_t sequence, int phase) const;

  MPI_Comm data_ = MPI_COMM_NULL;
  MPI_Comm checks_ = MPI_COMM_NULL;
  std::vector<int> ranks_;  ///< Of the members in data_ and checks_.
  int tag_limit_ = 0;
  int id_ = 0;  ///< Of the group among all that share the duplicates; sets their messages apart.
  bool busy_ = false;  ///< Requests of this group or one below it may never have ended.
  std::string failure_;
  std::shared_ptr<MpiGroup> parent_;
};

}  // namespace dkfac::comm
