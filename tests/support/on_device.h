#pragma once

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/ops.h"
#include "dkfac/core/tensor.h"

#include "support/host_waits.h"
#include "support/near.h"
#include "support/padded.h"

/// Tests on a CUDA device, real or emulated: made by dkfac_gpu_test() of CMake, whose main() skips
/// all of them where there is no device.
namespace dkfac::testing {

/// What is on the device of ctx, in host memory, once all work of its stream has run.
inline Tensor to_host(Context& ctx, ConstTensorView x) {
  Context host;
  Tensor out = Tensor::empty(host, x.shape(), x.dtype());
  ops::copy(ctx, x, out);
  ctx.stream().synchronize();
  return out;
}

/// The same as doubles, in row-major order.
inline std::vector<double> device_values(Context& ctx, ConstTensorView x) {
  Context host;
  return values(host, to_host(ctx, x));
}

inline Tensor to_device(Context& ctx, ConstTensorView x) { return Tensor::copy_of(ctx, x); }

/// A matrix on the device with padded rows, with NaN in the gaps: Padded, on the device.
class PaddedOnDevice {
 public:
  /// Any floating dtype, full of NaN.
  PaddedOnDevice(Context& ctx, DType dtype, std::int64_t rows, std::int64_t cols)
      : storage_(Tensor::empty(ctx, {rows + 1, cols + 5}, dtype)), rows_(rows), cols_(cols) {
    ops::fill(ctx, storage_, std::numeric_limits<double>::quiet_NaN());
  }
  /// Holds a matrix of the host.
  PaddedOnDevice(Context& ctx, ConstTensorView matrix)
      : PaddedOnDevice(ctx, matrix.dtype(), matrix.dim(0), matrix.dim(1)) {
    ops::copy(ctx, matrix, view());
  }
  [[nodiscard]] TensorView view() { return storage_.view().slice(0, 0, rows_).slice(1, 0, cols_); }
  [[nodiscard]] std::vector<double> values(Context& ctx) { return device_values(ctx, view()); }
  /// Whether the gaps still hold NaN.
  [[nodiscard]] bool gaps_untouched(Context& ctx) const {
    const std::vector<double> all = device_values(ctx, storage_);
    for (std::int64_t r = 0; r <= rows_; ++r)
      for (std::int64_t c = r < rows_ ? cols_ : 0; c < cols_ + 5; ++c)
        if (!std::isnan(all[static_cast<std::size_t>(r * (cols_ + 5) + c)])) return false;
    return true;
  }

 private:
  Tensor storage_;
  std::int64_t rows_, cols_;
};

/// A test over the computing dtypes with a context `ctx` on the device and `cpu` on the host.
class OnDevice : public ::testing::TestWithParam<DType> {
 protected:
  [[nodiscard]] DType dtype() const { return GetParam(); }
  /// Bound of what must agree with the host up to the order of operations.
  [[nodiscard]] double tolerance() const { return dtype() == DType::f64 ? 1e-10 : 1e-4; }
  [[nodiscard]] double epsilon() const {
    return dtype() == DType::f64 ? std::numeric_limits<double>::epsilon()
                                 : static_cast<double>(std::numeric_limits<float>::epsilon());
  }
  Context ctx{Device::cuda()};
  Context cpu{Device::cpu(), {.backend = Backend::reference, .threads = 1}};
};

inline std::string name_of_dtype(const ::testing::TestParamInfo<DType>& info) {
  return std::string(name_of(info.param));
}

}  // namespace dkfac::testing

/// Instantiates a suite derived from OnDevice over f32 and f64.
#define DKFAC_ON_DEVICE(suite)                                                          \
  INSTANTIATE_TEST_SUITE_P(DTypes, suite,                                               \
                           ::testing::Values(::dkfac::DType::f32, ::dkfac::DType::f64), \
                           ::dkfac::testing::name_of_dtype)
