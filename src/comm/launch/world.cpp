#include <exception>
#include <unistd.h>
#include <utility>

#include "dkfac/comm/launch.h"
#include "dkfac/comm/tcp.h"
#include "dkfac/core/error.h"

#include "comm/launch/mpi_calls.h"

namespace dkfac::comm {

void throw_no_mpi(const LaunchInfo& launch, std::string_view why) {
  // The variables of mpirun take precedence over RANK and the others.
  const char* over_tcp =
      launch.launcher == "openmpi"
          ? "start the processes without mpirun, which then connect over TCP: by torchrun, by srun "
            "--mpi=none, or by hand with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT"
          : "set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT for TCP";
  throw CommError(detail::concat("[world] ", launch.launcher, " started ", launch.size,
                                 " processes, but ", why, ", or ", over_tcp));
}

World::World(Options options, Secret secret) {
  options.validate();
  const LaunchInfo launch = detect_launch();
  const bool alone =
      launch.launcher == "none" || (launch.size == 1 && (!launch.host.empty() || !has_mpi()));
  const MpiCalls* mpi = find_mpi();
  if (mpi == nullptr || !mpi->is_running()) {
    if (alone) {
      comm_ = make_self(options);
      return;
    }
    if (!launch.host.empty()) {
      comm_ =
          make_tcp(launch.rank, launch.size, launch.host, launch.port, options, std::move(secret));
      return;
    }
    DKFAC_CHECK(!secret.required, "[world] a secret is required (require_secret), and ",
                launch.launcher, " connects ", launch.size,
                " ranks over MPI, which takes none; start them over TCP, by torchrun or srun "
                "--mpi=none, or do not require it");
    mpi = &load_mpi(launch);
    mpi->start();
    owns_mpi_ = true;
  }
  comm_ = mpi->make_world(launch, options);
}

World::~World() {
  // Peers would wait for collectives that this rank no longer makes.
  if (std::uncaught_exceptions() > 0) comm_->abort("the program left by an exception");
  const MpiCalls* mpi = owns_mpi_ ? find_mpi() : nullptr;
  if (mpi == nullptr || !mpi->is_running()) return;
  // Finalising would wait for peers that are still inside a collective or have ended.
  if (comm_->failed()) return;
  comm_.reset();
  mpi->finish();
}

void World::terminate(int exit_code) {
  if (const MpiCalls* mpi = find_mpi(); mpi != nullptr && mpi->is_running()) mpi->abort(exit_code);
  _exit(exit_code);
}

}  // namespace dkfac::comm
