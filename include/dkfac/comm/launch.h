#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "dkfac/comm/communicator.h"
#include "dkfac/core/export.h"

namespace dkfac::comm {

/// How this process was started, from its environment. size 1 when alone.
struct DKFAC_API LaunchInfo {
  int rank = 0;
  int size = 1;
  std::string launcher;   ///< "none", "torchrun", "openmpi", "slurm", "pmi" (MPICH and its kin)
  int local_rank = 0;     ///< Among the ranks of this machine, where the launcher says so.
  std::string host = {};  ///< Where rank 0 listens, for make_tcp; empty where MPI is to be used.
  std::uint16_t port = 0;
};
/// torchrun, or anybody who sets its RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT or DKFAC_PORT
/// (docs/distribution.md, "Launching"); mpirun; srun, over TCP unless it offers PMI or PMIx,
/// without which an MPI would see single processes. Throws InvalidArgument naming a variable that
/// makes no sense, or what is missing where some variables of a launcher are set and others not: a
/// rank of several must not take itself for the only one.
[[nodiscard]] DKFAC_API LaunchInfo detect_launch();

/// Owner of the process-wide MPI state of a program (a library user with MPI of her own calls
/// make_mpi instead). Under a launcher it makes the world communicator, over TCP where
/// LaunchInfo::host says so, else over MPI, which it initialises; alone it is make_self(). Throws
/// CommError when several ranks need MPI and this build has none.
class DKFAC_API World {
 public:
  explicit World(Options options = {});
  ~World();  ///< Finalises MPI unless the group was aborted.
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  [[nodiscard]] std::shared_ptr<Communicator> comm() const { return comm_; }
  /// Ends every process of the job with `exit_code` (MPI_Abort); plain _exit without MPI, which
  /// peers over TCP notice at once.
  [[noreturn]] static void terminate(int exit_code);

 private:
  bool owns_mpi_ = false;
  std::shared_ptr<Communicator> comm_;
};

}  // namespace dkfac::comm
