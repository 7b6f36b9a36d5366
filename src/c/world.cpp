// Alone in its file, so that programs with the archives have MPI only where they call it.
#include <memory>

#include "dkfac/c/dkfac.h"
#include "dkfac/comm/launch.h"

#include "c/make_comm.h"

using namespace dkfac;

int dkfac_comm_world(const dkfac_comm_options* options, dkfac_comm** out) {
  constexpr const char* kName = "dkfac_comm_world";
  return c::make_comm(kName, out, [&] {
    const auto world = std::make_shared<comm::World>(c::comm_options(options, kName),
                                                     c::comm_secret(options, kName));
    // The communicator keeps its world alive.
    return std::shared_ptr<comm::Communicator>(world, world->comm().get());
  });
}
