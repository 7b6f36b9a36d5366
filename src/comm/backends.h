#pragma once

#include <memory>

#include "dkfac/comm/communicator.h"
#include "dkfac/comm/launch.h"
#include "dkfac/comm/nccl.h"

/// What the rest of comm asks of MPI and NCCL; answered by their sources or by stubs.
namespace dkfac::comm {

/// Whether this build has MPI.
[[nodiscard]] bool has_mpi() noexcept;
/// Whether this build has NCCL.
[[nodiscard]] bool has_nccl() noexcept;
/// Of the library that is loaded, as 22705 for 2.27.5; 0 without NCCL.
[[nodiscard]] int nccl_version() noexcept;
/// make_nccl() once the ranks have agreed. Without NCCL it throws CommError.
[[nodiscard]] std::shared_ptr<Communicator> connect_nccl(std::shared_ptr<Communicator> bootstrap,
                                                         Device device, NcclOptions options);
/// Initialised, by whomever, and not finalised.
[[nodiscard]] bool mpi_is_running() noexcept;
/// Throws CommError without MPI, naming the launcher that wants it.
void start_mpi(const LaunchInfo& launch);
/// All ranks of the running MPI. Throws CommError unless they are as many as were launched.
[[nodiscard]] std::shared_ptr<Communicator> make_mpi_world(const LaunchInfo& launch,
                                                           const Options& options);
void finish_mpi() noexcept;
/// Ends all processes of a running MPI.
void abort_mpi(int exit_code) noexcept;

}  // namespace dkfac::comm
