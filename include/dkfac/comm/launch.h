#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "dkfac/comm/communicator.h"
#include "dkfac/comm/secret.h"
#include "dkfac/core/export.h"

namespace dkfac::comm {

/// Rank, world size and rendezvous address from the launcher's environment; size 1 without one.
struct DKFAC_API LaunchInfo {
  int rank = 0;
  int size = 1;
  std::string launcher;   ///< "none", "torchrun", "openmpi", "slurm", "pmi" (MPICH and related)
  int local_rank = 0;     ///< Index on this machine; 0 if the launcher does not provide it.
  std::string host = {};  ///< Address of rank 0 for make_tcp; empty where MPI is to be used.
  std::uint16_t port = 0;
};

/// Reads the variables of the launcher:
/// - torchrun, or the same variables set by hand: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT or
///   DKFAC_PORT (docs/distribution.md, "Launching");
/// - mpirun;
/// - srun, over TCP unless it offers PMI or PMIx, without which MPI would start single processes.
///
/// Throws InvalidArgument that names an invalid variable, or the missing ones if a launcher's
/// variables are only partly set: a rank of several must not run as a single process.
[[nodiscard]] DKFAC_API LaunchInfo detect_launch();

/// World communicator of a program, and owner of its MPI state. A program that initialises MPI
/// itself uses make_mpi() instead. Under a launcher it connects over TCP if LaunchInfo::host is
/// set, else over MPI, which it initialises. Without a launcher it is make_self(). Throws CommError
/// if several ranks need MPI and this build has none, or if an MPI that is already running has each
/// of them alone. InvalidArgument where `secret` requires one and MPI would be initialised
/// for several ranks, which takes none.
///
/// Declared before, and so destroyed after, every optimizer and communicator made from comm().
class DKFAC_API World {
 public:
  explicit World(Options options = {}, Secret secret = {});
  ~World();  ///< Finalises MPI unless the group was aborted.
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  [[nodiscard]] std::shared_ptr<Communicator> comm() const { return comm_; }
  /// Ends every process of the job with `exit_code` by MPI_Abort. Without MPI it is _exit, which
  /// peers over TCP detect immediately.
  [[noreturn]] static void terminate(int exit_code);

 private:
  bool owns_mpi_ = false;
  std::shared_ptr<Communicator> comm_;
};

}  // namespace dkfac::comm
