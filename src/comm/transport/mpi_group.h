#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <mpi.h>

#include "comm/transport/peer_group.h"

namespace dkfac::comm {

/// Peers over two private duplicates of an MPI communicator, one for data, one for checks and
/// failure notices. The group is all or some of its ranks; members_ are their numbers in both.
class MpiGroup final : public PeerGroup {
 public:
  /// Makes the group of all ranks of `comm`. Collective over it; fails after options.timeout_s.
  static std::shared_ptr<MpiGroup> duplicate(MPI_Comm comm, const Options& options);
  ~MpiGroup() override;
  MpiGroup(const MpiGroup&) = delete;
  MpiGroup& operator=(const MpiGroup&) = delete;

  [[nodiscard]] std::unique_ptr<Transfers> make_transfers(Channel channel, const CallInfo& info,
                                                          int phase) override;
  /// Makes a subgroup over the same duplicates with its own message tags, without a call of MPI.
  [[nodiscard]] std::shared_ptr<PeerGroup> subgroup(std::span<const int> members, int id,
                                                    const Options& options) override;

 private:
  MpiGroup() = default;
  void copy(MPI_Comm comm, const Options& options);
  void look_for_notice() override;
  void send_notice() noexcept override;
  [[nodiscard]] int notice_tag() const;
  [[nodiscard]] int tag(std::uint64_t sequence, int phase) const;

  MPI_Comm data_ = MPI_COMM_NULL;
  MPI_Comm checks_ = MPI_COMM_NULL;
  int tag_limit_ = 0;
  int id_ = 0;         ///< Id among the groups that share the duplicates; determines message tags.
  bool busy_ = false;  ///< Requests of this group or a subgroup may still be pending.
};

}  // namespace dkfac::comm
