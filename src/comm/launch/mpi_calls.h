#pragma once

#include "dkfac/core/export.h"

#include "comm/backends.h"

/// The calls of the library that is linked to MPI; libdkfac.so looks for it in libdkfac_mpi.so.
extern "C" DKFAC_API const dkfac::comm::MpiCalls* dkfac_mpi_calls() noexcept;

namespace dkfac::comm {

/// Throws the CommError of ranks that need MPI and have none: `why`, and how to do without.
[[noreturn]] void throw_no_mpi(const LaunchInfo& launch, std::string_view why);

}  // namespace dkfac::comm
