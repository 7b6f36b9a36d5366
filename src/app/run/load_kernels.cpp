#include "app/run/load_kernels.h"

#include <cstdlib>

namespace dkfac::app {

void load_kernels_early() { (void)setenv("CUDA_MODULE_LOADING", "EAGER", 0); }

}  // namespace dkfac::app
