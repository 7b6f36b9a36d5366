#pragma once

#include <string_view>

#include <mpi.h>

namespace dkfac::comm {

/// Throws CommError with MPI's error text unless `code` is MPI_SUCCESS.
void check_mpi(int code, std::string_view what);
/// Throws InvalidArgument unless the thread level lets the calling thread call MPI.
void check_mpi_thread(std::string_view operation);
/// Whether MPI is initialised, by this library or the program, and not finalised.
[[nodiscard]] bool mpi_is_running() noexcept;

}  // namespace dkfac::comm
