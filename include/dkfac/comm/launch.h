#pragma once

#include <functional>
#include <memory>
#include <string>

#include "dkfac/comm/communicator.h"

namespace dkfac::comm {

/// How this process was started, from the environment of mpirun / srun. size 1 when alone.
struct LaunchInfo {
  int rank = 0;
  int size = 1;
  std::string launcher;  ///< "none", "openmpi", "slurm", "pmi" (MPICH and its kin)
};
[[nodiscard]] LaunchInfo detect_launch();

/// Owner of the process-wide MPI state of a program (a library user with MPI of her own calls
/// make_mpi instead). Under a launcher it initialises MPI and makes the world communicator; alone
/// it is make_self(). Throws CommError when started under a launcher by a build without MPI.
class World {
 public:
  explicit World(Options options = {});
  ~World();  ///< Finalises MPI unless the group was aborted.
  World(const World&) = delete;
  World& operator=(const World&) = delete;
  [[nodiscard]] std::shared_ptr<Communicator> comm() const { return comm_; }
  /// Ends every process of the job with `exit_code` (MPI_Abort); plain _exit when alone.
  [[noreturn]] static void terminate(int exit_code);

 private:
  bool owns_mpi_ = false;
  std::shared_ptr<Communicator> comm_;
};

}  // namespace dkfac::comm
