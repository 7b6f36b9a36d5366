#include "core/shared/simd.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/ops.h"
#include "dkfac/core/random.h"
#include "dkfac/core/tensor.h"

namespace dkfac {
namespace {

/// Restores the widest instruction set at the end of a test.
struct Restore {
  ~Restore() { cpu::limit_simd(cpu::Simd::avx512); }
};

using Bytes = std::vector<unsigned char>;

void append(Bytes& bytes, ConstTensorView x) {
  const auto* data = static_cast<const unsigned char*>(x.raw());
  bytes.insert(bytes.end(), data, data + x.bytes());
}

/// Results of every elementwise operation and reduction for the same input, bit for bit.
template <class T>
Bytes results() {
  constexpr std::int64_t kRows = 67, kColumns = 61, kCount = kRows * kColumns;
  constexpr DType kType = dtype_of<T>;
  Context ctx;
  Random random(21);
  Tensor x = Tensor::empty(ctx, {kRows, kColumns}, kType), y = Tensor::empty(ctx, x.shape(), kType);
  for (std::int64_t i = 0; i < kCount; ++i) {
    x.data<T>()[i] =
        static_cast<T>(std::ldexp(random.normal(), static_cast<int>(random.below(60)) - 40));
    y.data<T>()[i] = static_cast<T>(random.normal());
  }
  Tensor scalar = Tensor::zeros(ctx, {1}, DType::f64), count = Tensor::zeros(ctx, {1});
  Tensor columns = Tensor::zeros(ctx, {kColumns}, kType);
  Tensor out = Tensor::zeros(ctx, x.shape(), kType);
  Bytes bytes;
  for (const auto reduction : {ops::sum, ops::max_abs}) {
    reduction(ctx, x, scalar);
    append(bytes, scalar);
  }
  ops::dot(ctx, x, y, scalar);
  append(bytes, scalar);
  ops::col_sum(ctx, 0.3, x, 0.0, columns);
  append(bytes, columns);
  ops::axpby(ctx, 0.3, x, -0.7, y);
  append(bytes, y);
  for (const DType type : {DType::f16, DType::bf16}) {
    ops::round_to(ctx, type, 0.3, x, out, count);
    append(bytes, out);
    Tensor half = Tensor::empty(ctx, x.shape(), type);
    for (const double scale : {1.0, 8.0, 0.3}) {
      ops::cast(ctx, x, half, scale);
      append(bytes, half);
      ops::cast(ctx, half, out, scale);
      append(bytes, out);
    }
  }
  x.data<T>()[77] = std::numeric_limits<T>::quiet_NaN();
  x.data<T>()[kCount - 1] = std::numeric_limits<T>::infinity();
  ops::copy_checked(ctx, 0.3, x, out, count);
  append(bytes, out);
  ops::count_nonfinite(ctx, x, count);
  append(bytes, count);
  ops::max_abs(ctx, x, scalar);
  append(bytes, scalar);
  return bytes;
}

template <class T>
void expect_equal_bits() {
  const Restore restore;
  cpu::limit_simd(cpu::Simd::baseline);
  const Bytes baseline = results<T>();
  for (const auto level : {cpu::Simd::avx2, cpu::Simd::avx512}) {
    cpu::limit_simd(level);
    EXPECT_EQ(results<T>(), baseline) << "level " << static_cast<int>(cpu::simd_level());
  }
}

TEST(Simd, LevelsGiveTheSameBitsInF32) { expect_equal_bits<float>(); }
TEST(Simd, LevelsGiveTheSameBitsInF64) { expect_equal_bits<double>(); }

TEST(Simd, NeverExceedsItsLimit) {
  const Restore restore;
  for (const auto level : {cpu::Simd::baseline, cpu::Simd::avx2, cpu::Simd::avx512}) {
    cpu::limit_simd(level);
    EXPECT_LE(cpu::simd_level(), level);
  }
}

}  // namespace
}  // namespace dkfac
