#include "dkfac/comm/mpi.h"

#include "dkfac/core/error.h"

#include "comm/backends.h"
#include "comm/transport/mpi_error.h"
#include "comm/transport/mpi_group.h"
#include "comm/transport/peer_communicator.h"

namespace dkfac::comm {

std::shared_ptr<Communicator> make_mpi(MPI_Comm comm, Options options) {
  options.validate();
  DKFAC_CHECK(mpi_is_running(),
              "[make_mpi] MPI is not initialised, or already finalised; call MPI_Init_thread "
              "first, or let comm::World do it");
  DKFAC_CHECK(comm != MPI_COMM_NULL,
              "[make_mpi] comm is MPI_COMM_NULL, as on ranks outside of a group; only its members "
              "make the communicator");
  int level = MPI_THREAD_SINGLE;
  check_mpi(MPI_Query_thread(&level), "MPI_Query_thread");
  DKFAC_CHECK(level >= MPI_THREAD_FUNNELED, "[make_mpi] MPI was initialised with thread level ",
              level, "; at least MPI_THREAD_FUNNELED (", MPI_THREAD_FUNNELED, ") is needed");
  auto communicator =
      std::make_shared<PeerCommunicator>("mpi", MpiGroup::duplicate(comm, options), options);
  communicator->compare_options();
  return communicator;
}

}  // namespace dkfac::comm
