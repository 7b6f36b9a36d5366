#include "dkfac/core/error.h"

#include "kfac/statistics/backend_statistics.h"
#include "kfac/statistics/cuda/operand.h"

namespace dkfac::kfac::cuda {
namespace {

[[noreturn]] void refuse(const char* operation) {
  throw DeviceError(
      detail::concat("[", operation, "] this build has no CUDA backend; use Device::cpu()"));
}

}  // namespace

void round_operand(Context&, double, ConstTensorView, OperandStats, TensorView) {
  refuse("operand");
}
void find_range(Context&, ConstTensorView, TensorView) { refuse("operand"); }
void batch_norm_gradients(Context&, const BatchNormData&, TensorView) {
  refuse("batch norm Fisher");
}
void batch_norm_products(Context&, const BatchNormData&, double, double, TensorView) {
  refuse("batch norm Fisher");
}
void add_ekfac_samples(Context&, const EkfacBasis&, double, std::int64_t, TensorView, TensorView,
                       TensorView) {
  refuse("EKFAC scales");
}

}  // namespace dkfac::kfac::cuda
