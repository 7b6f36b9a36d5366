#include "dkfac/comm/mpi.h"

#include "dkfac/core/error.h"

#include "comm/transport/mpi_error.h"
#include "comm/transport/mpi_group.h"
#include "comm/transport/peer_communicator.h"

namespace dkfac::comm {

std::shared_ptr<Communicator> make_mpi(MPI_Comm comm, Options options) {
  options.validate();
  DKFAC_CHECK(
      mpi_is_running(),
      "[make_mpi] MPI is not initialised, or already finalised; call MPI_Init first, or let "
      "comm::World do it");
  DKFAC_CHECK(comm != MPI_COMM_NULL,
              "[make_mpi] comm is MPI_COMM_NULL, as on ranks outside of a group; only its members "
              "make the communicator");
  check_mpi_thread("make_mpi");
  return make_peers("mpi", MpiGroup::duplicate(comm, options), options);
}

}  // namespace dkfac::comm
