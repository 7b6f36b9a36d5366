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

void check_mpi_thread(std::string_view operation) {
  int level = MPI_THREAD_SINGLE, is_main = 0;
  check_mpi(MPI_Query_thread(&level), "MPI_Query_thread");
  if (level >= MPI_THREAD_SERIALIZED) return;
  check_mpi(MPI_Is_thread_main(&is_main), "MPI_Is_thread_main");
  DKFAC_CHECK(
      is_main != 0, "[", operation, "] MPI was initialised with ",
      level == MPI_THREAD_SINGLE ? "MPI_THREAD_SINGLE, as by MPI_Init" : "MPI_THREAD_FUNNELED",
      ", which lets only the thread that did so call it; initialise it by MPI_Init_thread "
      "with MPI_THREAD_SERIALIZED, or communicate in that thread");
}

bool mpi_is_running() noexcept {
  int initialized = 0, finalized = 0;
  return MPI_Initialized(&initialized) == MPI_SUCCESS && initialized != 0 &&
         MPI_Finalized(&finalized) == MPI_SUCCESS && finalized == 0;
}

}  // namespace dkfac::comm
