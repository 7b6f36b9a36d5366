#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include <mpi.h>

#include "comm/transport/transfers.h"

namespace dkfac::comm {

/// Transfers over one MPI communicator and tag, driven by MPI_Testsome. MPI keeps messages of equal
/// tag between two ranks in order, so pieces need no numbers.
class MpiTransfers final : public Transfers {
 public:
  /// `ranks`: ranks of the peers in `comm`; must outlive the transfers.
  MpiTransfers(MPI_Comm comm, const std::vector<int>& ranks, int tag)
      : comm_(comm), ranks_(ranks), tag_(tag) {}
  /// Cancels or abandons pending requests; their memory must then outlive MPI.
  ~MpiTransfers() override;
  MpiTransfers(const MpiTransfers&) = delete;
  MpiTransfers& operator=(const MpiTransfers&) = delete;

  bool advance() override;

 private:
  /// Whether the piece of each request is complete, ahead of Transfer::done.
  using Arrived = std::array<bool, static_cast<std::size_t>(kPiecesInFlight)>;

  void start();
  bool collect();
  void finish(std::size_t request, const MPI_Status& status);

  MPI_Comm comm_;
  const std::vector<int>& ranks_;
  int tag_;
  std::vector<Arrived> arrived_;       ///< Transfer by transfer.
  std::vector<MPI_Request> requests_;  ///< Transfer by transfer, kPiecesInFlight requests each.
  std::vector<int> indices_;
  std::vector<MPI_Status> statuses_;
};

}  // namespace dkfac::comm
