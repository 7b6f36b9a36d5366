#include <exception>
#include <unistd.h>

#include "dkfac/comm/launch.h"
#include "dkfac/comm/tcp.h"

#include "comm/backends.h"

namespace dkfac::comm {

World::World(Options options) {
  options.validate();
  const LaunchInfo launch = detect_launch();
  const bool alone =
      launch.launcher == "none" || (launch.size == 1 && (!launch.host.empty() || !has_mpi()));
  if (!mpi_is_running()) {
    if (alone) {
      comm_ = make_self(options);
      return;
    }
    if (!launch.host.empty()) {
      comm_ = make_tcp(launch.rank, launch.size, launch.host, launch.port, options);
      return;
    }
    start_mpi(launch);
    owns_mpi_ = true;
  }
  comm_ = make_mpi_world(launch, options);
}

World::~World() {
  // Peers would wait for collectives that this rank no longer makes.
  if (std::uncaught_exceptions() > 0) comm_->abort("the program left by an exception");
  if (!owns_mpi_ || !mpi_is_running()) return;
  // Finalising would wait for peers that are still inside a collective or have ended.
  if (comm_->failed()) return;
  comm_.reset();
  finish_mpi();
}

void World::terminate(int exit_code) {
  if (mpi_is_running()) abort_mpi(exit_code);
  _exit(exit_code);
}

}  // namespace dkfac::comm
