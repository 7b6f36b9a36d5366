#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <mpi.h>

#include "comm/transport/lanes.h"

namespace dkfac::comm {

/// Lanes that share a communicator and a tag, driven by MPI_Testsome. MPI keeps messages of equal
/// tag between two ranks in order, so pieces need no numbers.
class MpiLanes final : public Lanes {
 public:
  /// `ranks`: of the peers in `comm`; outlives the lanes.
  MpiLanes(MPI_Comm comm, const std::vector<int>& ranks, int tag)
      : comm_(comm), ranks_(ranks), tag_(tag) {}
  /// Requests that are under way are cancelled or given up; their memory must then outlive MPI.
  ~MpiLanes() override;
  MpiLanes(const MpiLanes&) = delete;
  MpiLanes& operator=(const MpiLanes&) = delete;

  bool advance() override;
  [[nodiscard]] bool busy() const override;

 private:
  /// By slot: whether a piece is complete, ahead of Lane::done.
  using Arrived = std::array<bool, static_cast<std::size_t>(kPiecesInFlight)>;

  void start();
  bool collect();
  void finish(std::size_t request, const MPI_Status& status);

  MPI_Comm comm_;
  const std::vector<int>& ranks_;
  int tag_;
  std::vector<Arrived> arrived_;       ///< Lane by lane.
  std::vector<MPI_Request> requests_;  ///< Lane by lane, kPiecesInFlight slots each.
  std::vector<int> indices_;
  std::vector<MPI_Status> statuses_;
};

}  // namespace dkfac::comm
