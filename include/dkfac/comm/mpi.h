#pragma once

#include <memory>

#include <mpi.h>

#include "dkfac/comm/communicator.h"
#include "dkfac/core/export.h"

namespace dkfac::comm {

/// Makes a communicator of host memory over private duplicates of `comm`. The caller initialises
/// MPI, by MPI_Init or MPI_Init_thread with any level, and finalises it after the result is
/// destroyed. MPI is called only by threads that call the result or what uses it; below
/// MPI_THREAD_SERIALIZED, on another one than that which initialised MPI, this is an error.
/// Collective over `comm`; it verifies that piece_bytes and check are the same on every rank.
/// Throws InvalidArgument if MPI is not running, and for MPI_COMM_NULL. In a program with
/// libdkfac.so it takes libdkfac_mpi.so (CMake: dkfac::mpi).
///
/// MPI makes progress only inside its calls, so a collective on a host queue advances only in
/// progress() or a wait. Nothing blocks without a time limit.
///
/// After a failure MPI may still write to the buffers of pending collectives, and MPI_Finalize may
/// hang: keep the buffers, and end the process (World::terminate).
[[nodiscard]] DKFAC_API std::shared_ptr<Communicator> make_mpi(MPI_Comm comm, Options options = {});

}  // namespace dkfac::comm
