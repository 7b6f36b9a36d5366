/* The world of a launcher, where libdkfac.so is not linked to MPI. Arguments: expected backend and
 * size. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dkfac/c/dkfac.h"

int main(int argc, char** argv) {
  dkfac_comm* comm = NULL;
  double sum[1] = {1};
  const dkfac_tensor view = dkfac_vector(sum, DKFAC_F64, 1);
  if (argc != 3) return 2;
  if (dkfac_comm_world(NULL, &comm) != DKFAC_OK ||
      dkfac_comm_all_reduce(comm, &view, DKFAC_REDUCE_SUM) != DKFAC_OK) {
    fprintf(stderr, "%s\n", dkfac_last_error());
    return 1;
  }
  printf("backend %s, %d ranks\n", dkfac_comm_backend(comm), (int)dkfac_comm_size(comm));
  const int right = strcmp(dkfac_comm_backend(comm), argv[1]) == 0 && sum[0] == atof(argv[2]);
  dkfac_comm_destroy(comm);
  return right ? 0 : 1;
}
