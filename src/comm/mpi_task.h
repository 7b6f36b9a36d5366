#pragma once

#include <memory>
#include <string>

#include "comm/deadline.h"
#include "comm/host_communicator.h"
#include "comm/mpi_flows.h"

namespace dkfac::comm {

/// One collective over MPI: the comparison of calls where it is asked for, then the movement, as
/// flows one after the other. Fails the group when it fails or is dropped half-way.
class MpiTask final : public HostTask {
 public:
  MpiTask(std::shared_ptr<MpiGroup> group, const Options& options, HostCall call);
  ~MpiTask() override;
  MpiTask(const MpiTask&) = delete;
  MpiTask& operator=(const MpiTask&) = delete;

  bool advance() override;

 private:
  bool advance_flows();
  [[nodiscard]] std::unique_ptr<MpiFlow> make_flow(int phase);
  [[nodiscard]] std::string time_limit_text() const;

  std::shared_ptr<MpiGroup> group_;
  Options options_;
  HostCall call_;
  Deadline deadline_;
  int phase_ = 0;  ///< 0: compare; 1, 2: move.
  bool complete_ = false;
  std::unique_ptr<MpiFlow> flow_;  ///< After call_ and group_, which it borrows.
};

}  // namespace dkfac::comm
