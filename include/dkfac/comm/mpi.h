#pragma once

#include <memory>

#include <mpi.h>

#include "dkfac/comm/communicator.h"
#include "dkfac/core/export.h"

namespace dkfac::comm {

/// Makes a communicator of host memory over private duplicates of `comm`. The caller initialises
/// MPI with at least MPI_THREAD_FUNNELED and finalises it after the result is destroyed. Collective
/// over `comm`; it verifies that piece_bytes and check are the same on every rank. Throws
/// InvalidArgument if MPI is not running, and for MPI_COMM_NULL.
///
/// MPI makes progress only inside its calls, so a collective on a host queue advances only in
/// progress() or a wait. Nothing blocks without a time limit.
///
/// After a failure MPI may still write to the buffers of pending collectives, and MPI_Finalize may
/// hang: keep the buffers, and end the process (World::terminate).
[[nodiscard]] DKFAC_API std::shared_ptr<Communicator> make_mpi(MPI_Comm comm, Options options = {});

}  // namespace dkfac::comm
