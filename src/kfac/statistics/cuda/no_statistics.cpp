#include "dkfac/core/error.h"

#include "kfac/statistics/backend_statistics.h"
#include "kfac/statistics/cuda/operand.h"

namespace dkfac::kfac::cuda {
namespace {

[[noreturn]] void refuse_statistics(const char* operation) {
  throw DeviceError(
      detail::concat("[", operation, "] this build has no CUDA backend; use Device::cpu()"));
}

}  // namespace

void round_operand(Context&, double, ConstTensorView, OperandStats, TensorView) {
  refuse_statistics("operand");
}
void find_range(Context&, ConstTensorView, TensorView) { refuse_statistics("operand"); }
void norm_gradients(Context&, const NormData&, TensorView) { refuse_statistics("norm Fisher"); }
void norm_products(Context&, const NormData&, double, double, TensorView) {
  refuse_statistics("norm Fisher");
}
void add_ekfac_samples(Context&, const EkfacBasis&, double, std::int64_t, TensorView, TensorView,
                       TensorView) {
  refuse_statistics("EKFAC scales");
}

}  // namespace dkfac::kfac::cuda
