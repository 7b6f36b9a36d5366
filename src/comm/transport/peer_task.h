#pragma once

#include <exception>
#include <memory>
#include <string>

#include "comm/transport/collective_phases.h"
#include "comm/transport/deadline.h"
#include "comm/transport/host_communicator.h"

namespace dkfac::comm {

/// Task of one collective over peers: its phases in sequence, the comparison of calls (with
/// Check::full), then the data movement. Fails the group if it fails or is dropped before its end.
class PeerTask final : public HostTask {
 public:
  PeerTask(std::shared_ptr<PeerGroup> group, const Options& options, HostCall call);
  ~PeerTask() override;
  PeerTask(const PeerTask&) = delete;
  PeerTask& operator=(const PeerTask&) = delete;

  bool advance() override;

 private:
  bool advance_phases();
  [[nodiscard]] Phase make_phase(int phase);
  [[nodiscard]] std::string time_limit_text() const;
  /// The message of an error with the rank and the call that it met.
  [[nodiscard]] std::string located(const std::exception& error) const;

  std::shared_ptr<PeerGroup> group_;
  Options options_;
  HostCall call_;
  Deadline deadline_;
  int phase_ = 0;  ///< 0: compare; 1, 2: move.
  bool complete_ = false;
  Phase running_phase_;  ///< After call_ and group_, which it borrows.
};

}  // namespace dkfac::comm
