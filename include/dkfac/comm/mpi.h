#pragma once

#include <memory>

#include <mpi.h>

#include "dkfac/comm/communicator.h"
#include "dkfac/core/export.h"

namespace dkfac::comm {

/// Over private duplicates of `comm`; MPI must be initialised, with at least
/// MPI_THREAD_FUNNELED, by the caller, and must not be finalised before the result is destroyed.
/// Host memory. Collective over `comm`: piece_bytes and check have to be the same on every rank,
/// which is compared here.
///
/// MPI works only inside its calls, so a collective on a host queue moves only while progress() or
/// a wait is running. Nothing blocks without a time limit.
///
/// After a failure MPI may still write to the buffers of the collectives that were under way, and
/// finalising may hang: keep the buffers, and end the process (World::terminate).
[[nodiscard]] DKFAC_API std::shared_ptr<Communicator> make_mpi(MPI_Comm comm, Options options = {});

}  // namespace dkfac::comm
