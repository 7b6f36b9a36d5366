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
/// Whether MPI is initialised, by this library or the program, and not finalised.
[[nodiscard]] bool mpi_is_running() noexcept;
/// Initialises MPI. Throws CommError without MPI, naming the launcher that requires it.
void start_mpi(const LaunchInfo& launch);
/// Makes a communicator of all ranks of the running MPI. Throws CommError unless their number is
/// that of the launch.
[[nodiscard]] std::shared_ptr<Communicator> make_mpi_world(const LaunchInfo& launch,
                                                           const Options& options);
void finish_mpi() noexcept;
/// Ends all processes of a running MPI.
void abort_mpi(int exit_code) noexcept;

}  // namespace dkfac::comm
