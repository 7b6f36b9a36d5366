// The C interface in a project that stays C++14.
#include <cstdio>
#include <cstring>

#include "dkfac/c/dkfac.h"

static_assert(__cplusplus == 201402L, "dkfac::c changes the standard of the project");

int main() {
  dkfac_comm* comm = nullptr;
  const bool right = dkfac_comm_self(nullptr, &comm) == DKFAC_OK &&
                     std::strcmp(dkfac_comm_backend(comm), "self") == 0;
  dkfac_comm_destroy(comm);
  return right ? 0 : 1;
}
