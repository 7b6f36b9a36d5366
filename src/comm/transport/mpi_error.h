#pragma once

#include <string_view>

#include <mpi.h>

namespace dkfac::comm {

/// Throws CommError with MPI's error text unless `code` is MPI_SUCCESS.
void check_mpi(int code, std::string_view what);

}  // namespace dkfac::comm
