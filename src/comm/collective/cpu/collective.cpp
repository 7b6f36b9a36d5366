#include "comm/collective/backend_collective.h"
#include "comm/collective/cuda/collective_functors.h"

namespace dkfac::comm::cpu {

void raise_flag(Context&, ConstTensorView count, TensorView flag) {
  RaiseFlag{count.data<float>(), flag.data<double>()}(0);
}

void raise_nonfinite(Context&, ConstTensorView value, TensorView flag) {
  RaiseNonfinite{value.data<double>(), flag.data<double>()}(0);
}

void count_past(Context&, double scale, double limit, ConstTensorView largest, TensorView count) {
  CountPast{scale, limit, largest.data<float>(), count.data<float>()}(0);
}

}  // namespace dkfac::comm::cpu
