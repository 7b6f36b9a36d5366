#pragma once

#include <memory>
#include <string_view>

#include "comm/transport/host_communicator.h"
#include "comm/transport/peer_group.h"

namespace dkfac::comm {

/// Collectives over a group of peers. `backend` is a literal.
class PeerCommunicator final : public HostCommunicator {
 public:
  PeerCommunicator(std::string_view backend, std::shared_ptr<PeerGroup> group, Options options);
  ~PeerCommunicator() override;
  PeerCommunicator(const PeerCommunicator&) = delete;
  PeerCommunicator& operator=(const PeerCommunicator&) = delete;

  [[nodiscard]] std::string_view backend() const override { return backend_; }
  [[nodiscard]] bool failed() const override { return group_->failed(); }
  [[nodiscard]] const PeerGroup& group() const { return *group_; }

 protected:
  std::unique_ptr<HostTask> make_task(HostCall call) override;
  void throw_if_failed() override { group_->throw_if_failed(); }
  std::shared_ptr<Communicator> do_split(int color, int key, CallInfo info) override;
  void do_abort(std::string_view reason) noexcept override;

 private:
  std::string_view backend_;
  std::shared_ptr<PeerGroup> group_;

  friend std::shared_ptr<Communicator> make_peers(std::string_view backend,
                                                  std::shared_ptr<PeerGroup> group,
                                                  const Options& options);
};

/// Makes the communicator of a group. Throws CommError on every rank unless piece_bytes and check
/// are equal on all ranks. Exported for libdkfac_mpi.so.
[[nodiscard]] DKFAC_API std::shared_ptr<Communicator> make_peers(std::string_view backend,
                                                                 std::shared_ptr<PeerGroup> group,
                                                                 const Options& options);

}  // namespace dkfac::comm
