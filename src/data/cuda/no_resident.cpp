#include "dkfac/core/error.h"

#include "data/cuda/resident.h"

namespace dkfac::data::cuda {

void make_batch(Context&, const ResidentImages&, std::int64_t, TensorView, TensorView) {
  throw DeviceError("[device_data] this build has no CUDA; keep the data on the cpu");
}

}  // namespace dkfac::data::cuda
