#include <cstdlib>
#include <string_view>

#include "dkfac/comm/launch.h"
#include "dkfac/core/error.h"

/// A small program around World: "finish" ends well; "throw" lets rank 1 fail while the others
/// wait, and ends the job with code 75 through World::terminate.
int main(int argc, char** argv) {
  using dkfac::comm::World;
  const bool throws = argc > 1 && std::string_view(argv[1]) == "throw";
  try {
    const World world({.timeout_s = 60});
    world.comm()->barrier();
    if (throws && world.comm()->rank() == 1) throw dkfac::DataError("[test] a bad file");
    world.comm()->barrier();
  } catch (const dkfac::DataError&) {
    World::terminate(75);
  } catch (const dkfac::CommError&) {
    World::terminate(75);
  }
  return EXIT_SUCCESS;
}
