#include "comm/transport/mpi_error.h"

#include <array>

#include "dkfac/core/error.h"

namespace dkfac::comm {

void check_mpi(int code, std::string_view what) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  if (MPI_Error_string(code, text.data(), &length) != MPI_SUCCESS) length = 0;
  throw CommError(detail::concat(
      "[", what, "] failed: ", std::string_view(text.data(), static_cast<std::size_t>(length)),
      " (MPI code ", code, ")"));
}

}  // namespace dkfac::comm
