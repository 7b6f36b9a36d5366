#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <mpi.h>

#include "comm/transport/transfers.h"

namespace dkfac::comm {

/// Transfers that share a communicator and a tag, driven by MPI_Testsome. MPI keeps messages of
/// equal tag between two ranks in order, so pieces need no numbers.
class MpiTransfers final : public Transfers {
 public:
  /// `ranks`: of the peers in `comm`; outlives the transfers.
  MpiTransfers(MPI_Comm comm, const std::vector<int>& ranks, int tag)
      : comm_(comm), ranks_(ranks), tag_(tag) {}
  /// Requests that are under way are cancelled or given up; their memory must then outlive MPI.
  ~MpiTransfers() override;
  MpiTransfers(const MpiTransfers&) = delete;
  MpiTransfers& operator=(const MpiTransfers&) = delete;

  bool advance() override;
  [[nodiscard]] bool busy() const override;

 private:
  /// By slot: whether a piece is complete, ahead of Transfer::done.
  using Arrived = std::array<bool, static_cast<std::size_t>(kPiecesInFlight)>;

  void start();
  bool collect();
  void finish(std::size_t request, const MPI_Status& status);

  MPI_Comm comm_;
  const std::vector<int>& ranks_;
  int tag_;
  std::vector<Arrived> arrived_;       ///< Transfer by transfer.
  std::vector<MPI_Request> requests_;  ///< Transfer by transfer, kPiecesInFlight slots each.
  std::vector<int> indices_;
  std::vector<MPI_Status> statuses_;
};

}  // namespace dkfac::comm
