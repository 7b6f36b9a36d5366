#pragma once

#include <memory>

#include "dkfac/comm/communicator.h"
#include "dkfac/comm/launch.h"
#include "dkfac/comm/nccl.h"

/// Interface of comm to MPI and NCCL, implemented by their sources or by stubs.
namespace dkfac::comm {

/// Whether this build has MPI.
[[nodiscard]] bool has_mpi() noexcept;
/// Whether this build has NCCL.
[[nodiscard]] bool has_nccl() noexcept;
/// Version of the loaded NCCL library, e.g. 22705 for 2.27.5; 0 without NCCL.
[[nodiscard]] int nccl_version() noexcept;
/// Creates the communicator of make_nccl() after the ranks have compared their configurations.
/// Without NCCL it throws CommError.
[[nodiscard]] std::shared_ptr<Communicator> connect_nccl(std::shared_ptr<Communicator> bootstrap,
                                                         Device device, NcclOptions options);
/// What World needs of MPI.
struct MpiCalls {
  /// Whether MPI is initialised, by this library or the program, and not finalised.
  bool (*is_running)() noexcept;
  /// Initialises MPI. Throws CommError.
  void (*start)();
  /// Makes a communicator of all ranks of the running MPI. Throws CommError unless their number is
  /// that of the launch.
  std::shared_ptr<Communicator> (*make_world)(const LaunchInfo& launch, const Options& options);
  void (*finish)() noexcept;
  /// Ends all processes of a running MPI.
  void (*abort)(int exit_code) noexcept;
};
/// The calls where MPI is in this process already, which may be running then; else null.
[[nodiscard]] const MpiCalls* find_mpi() noexcept;
/// The calls, for ranks that `launch` started. Throws CommError that says why there are none.
[[nodiscard]] const MpiCalls& load_mpi(const LaunchInfo& launch);

}  // namespace dkfac::comm
