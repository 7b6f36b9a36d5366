#pragma once

#include <memory>

#include <mpi.h>

#include "dkfac/comm/communicator.h"

namespace dkfac::comm {

/// Over a private duplicate of `comm`; MPI must be initialised, with at least
/// MPI_THREAD_FUNNELED, by the caller, and must not be finalised before the result is destroyed.
/// Host memory.
[[nodiscard]] std::shared_ptr<Communicator> make_mpi(MPI_Comm comm, Options options = {});

}  // namespace dkfac::comm
