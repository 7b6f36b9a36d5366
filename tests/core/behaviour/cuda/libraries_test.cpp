#include <cmath>
#include <cstddef>
#include <vector>

#include <cublas_v2.h>
#include <cusolverDn.h>
#include <gtest/gtest.h>

#include "dkfac/core/tensor.h"

#include "core/shared/cuda/handles.h"
#include "support/not_finite.h"
#include "support/on_device.h"

// cuBLAS and cuSOLVER called directly, column-major. The same expectations apply to the emulated
// libraries and the real ones.
namespace dkfac {
namespace {

/// A column-major matrix of doubles in host memory, with rows beyond its own up to ld.
struct Columns {
  std::int64_t rows, cols, ld;
  std::vector<double> data;

  Columns(std::int64_t r, std::int64_t c, std::int64_t gap, double fill = kNan)
      : rows(r), cols(c), ld(r + gap), data(static_cast<std::size_t>(ld * c), fill) {}
  double& operator()(std::int64_t i, std::int64_t j) {
    return data[static_cast<std::size_t>(i + j * ld)];
  }
  double operator()(std::int64_t i, std::int64_t j) const {
    return data[static_cast<std::size_t>(i + j * ld)];
  }
};

template <class F>
Columns make_columns(std::int64_t rows, std::int64_t cols, F f, std::int64_t gap = 2) {
  Columns out(rows, cols, gap);
  for (std::int64_t j = 0; j < cols; ++j)
    for (std::int64_t i = 0; i < rows; ++i) out(i, j) = f(i, j);
  return out;
}

Columns flipped(const Columns& x) {
  return make_columns(x.cols, x.rows, [&](auto i, auto j) { return x(j, i); });
}
Columns product(const Columns& a, const Columns& b) {
  return make_columns(a.rows, b.cols, [&](auto i, auto j) {
    double sum = 0;
    for (std::int64_t p = 0; p < a.cols; ++p) sum += a(i, p) * b(p, j);
    return sum;
  });
}
/// Small integers without any symmetry.
Columns numbers(std::int64_t rows, std::int64_t cols, std::int64_t seed) {
  return make_columns(rows, cols, [&](auto i, auto j) {
    return static_cast<double>((i * 7 + j * 3 + i * j + seed) % 9 - 4);
  });
}

/// L of order 3 with L L' = {{4, 2, 8}, {2, 10, 19}, {8, 19, 77}}.
Columns factor() {
  constexpr double kValues[3][3] = {{2, 0, 0}, {1, 3, 0}, {4, 5, 6}};
  return make_columns(3, 3, [&](auto i, auto j) { return kValues[i][j]; });
}

class Libraries : public ::testing::Test {
 protected:
  Tensor upload(const Columns& x) {
    return Tensor::copy_of(ctx, view_of(x.data.data(), {static_cast<std::int64_t>(x.data.size())}));
  }
  Columns download(const Tensor& x, const Columns& like) {
    Columns out = like;
    out.data = testing::device_values(ctx, x);
    return out;
  }
  /// `triangle` of x, with NaN in the other.
  static Columns half(cublasFillMode_t uplo, Columns x) {
    for (std::int64_t j = 0; j < x.cols; ++j)
      for (std::int64_t i = 0; i < x.rows; ++i)
        if (uplo == CUBLAS_FILL_MODE_LOWER ? i < j : i > j) x(i, j) = kNan;
    return x;
  }
  /// Equal up to rounding, NaN where NaN is.
  static void expect_near(const Columns& actual, const Columns& expected) {
    ASSERT_EQ(actual.data.size(), expected.data.size());
    for (std::size_t i = 0; i < expected.data.size(); ++i) {
      if (std::isnan(expected.data[i])) {
        EXPECT_TRUE(std::isnan(actual.data[i])) << i;
      } else {
        EXPECT_NEAR(actual.data[i], expected.data[i], 1e-12) << i;
      }
    }
  }
  std::int32_t status(const Tensor& info) {
    return *testing::to_host(ctx, info).view().data<std::int32_t>();
  }

  Context ctx{Device::cuda()};
};

constexpr cublasOperation_t kOperations[] = {CUBLAS_OP_N, CUBLAS_OP_T};
constexpr cublasFillMode_t kTriangles[] = {CUBLAS_FILL_MODE_LOWER, CUBLAS_FILL_MODE_UPPER};

TEST_F(Libraries, MultiplyColumnMajorMatrices) {
  const double alpha = 2, beta = -1;
  const Columns a = numbers(3, 4, 1), b = numbers(4, 2, 5), c = numbers(3, 2, 2);
  Columns expected = c;
  for (std::int64_t j = 0; j < 2; ++j)
    for (std::int64_t i = 0; i < 3; ++i) expected(i, j) = 2 * product(a, b)(i, j) - c(i, j);
  for (const auto ta : kOperations) {
    for (const auto tb : kOperations) {
      const Columns sa = ta == CUBLAS_OP_T ? flipped(a) : a,
                    sb = tb == CUBLAS_OP_T ? flipped(b) : b;
      const Tensor da = upload(sa), db = upload(sb);
      Tensor dc = upload(c);
      ASSERT_EQ(
          cublasGemmEx_64(cuda::blas(ctx), ta, tb, 3, 2, 4, &alpha, da.view().raw(), CUDA_R_64F,
                          sa.ld, db.view().raw(), CUDA_R_64F, sb.ld, &beta, dc.view().raw(),
                          CUDA_R_64F, c.ld, CUBLAS_COMPUTE_64F, CUBLAS_GEMM_DEFAULT),
          CUBLAS_STATUS_SUCCESS);
      expect_near(download(dc, c), expected);
    }
  }
}

TEST_F(Libraries, RefuseLeadingDimensionsThatDoNotFit) {
  const double one = 1;
  Tensor x = upload(numbers(4, 4, 0));
  void* data = x.view().raw();
  const auto multiply = [&](cublasOperation_t ta, std::int64_t m, std::int64_t lda,
                            std::int64_t ldb, std::int64_t ldc, cudaDataType type_b) {
    return cublasGemmEx_64(cuda::blas(ctx), ta, CUBLAS_OP_N, m, 2, 4, &one, data, CUDA_R_64F, lda,
                           data, type_b, ldb, &one, data, CUDA_R_64F, ldc, CUBLAS_COMPUTE_64F,
                           CUBLAS_GEMM_DEFAULT);
  };
  EXPECT_EQ(multiply(CUBLAS_OP_N, 3, 2, 4, 3, CUDA_R_64F), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(multiply(CUBLAS_OP_T, 3, 3, 4, 3, CUDA_R_64F), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(multiply(CUBLAS_OP_N, 3, 3, 3, 3, CUDA_R_64F), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(multiply(CUBLAS_OP_N, 3, 3, 4, 2, CUDA_R_64F), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(multiply(CUBLAS_OP_N, -1, 3, 4, 3, CUDA_R_64F), CUBLAS_STATUS_INVALID_VALUE);
  EXPECT_EQ(multiply(CUBLAS_OP_N, 3, 3, 4, 3, CUDA_R_16F), CUBLAS_STATUS_NOT_SUPPORTED);
}

TEST_F(Libraries, FillOneTriangleOfASymmetricProduct) {
  const double one = 1, zero = 0;
  const Columns x = numbers(3, 5, 4);
  for (const auto uplo : kTriangles) {
    for (const auto op : kOperations) {
      const Columns stored = op == CUBLAS_OP_T ? flipped(x) : x;
      const Tensor dx = upload(stored);
      const Columns none(3, 3, 2);
      Tensor dc = upload(none);
      ASSERT_EQ(cublasDsyrk_64(cuda::blas(ctx), uplo, op, 3, 5, &one, dx.view().data<double>(),
                               stored.ld, &zero, dc.view().data<double>(), none.ld),
                CUBLAS_STATUS_SUCCESS);
      expect_near(download(dc, none), half(uplo, product(x, flipped(x))));
    }
  }
}

TEST_F(Libraries, SolveTriangularSystemsOnEitherSide) {
  const double alpha = 0.5;
  for (const auto side : {CUBLAS_SIDE_LEFT, CUBLAS_SIDE_RIGHT}) {
    for (const auto uplo : kTriangles) {
      for (const auto op : kOperations) {
        const Columns a = uplo == CUBLAS_FILL_MODE_LOWER ? factor() : flipped(factor());
        const Columns applied = op == CUBLAS_OP_T ? flipped(a) : a;
        const bool left = side == CUBLAS_SIDE_LEFT;
        const Columns x = left ? numbers(3, 4, 3) : numbers(4, 3, 3);
        // Solving for alpha times the product gives alpha times what went into it.
        Columns b = left ? product(applied, x) : product(x, applied), expected = x;
        for (double& value : expected.data) value *= alpha;
        const Tensor da = upload(half(uplo, a));
        Tensor db = upload(b);
        double* addresses[] = {const_cast<double*>(da.view().data<double>()),
                               db.view().data<double>()};
        Tensor pointers = Tensor::copy_of(ctx, view_of(reinterpret_cast<double*>(addresses), {2}));
        auto** first = static_cast<double**>(pointers.view().raw());
        ASSERT_EQ(
            cublasDtrsmBatched(cuda::blas(ctx), side, uplo, op, CUBLAS_DIAG_NON_UNIT,
                               static_cast<int>(x.rows), static_cast<int>(x.cols), &alpha, first,
                               static_cast<int>(a.ld), first + 1, static_cast<int>(b.ld), 1),
            CUBLAS_STATUS_SUCCESS);
        expect_near(download(db, b), expected);
      }
    }
  }
}

class Solvers : public Libraries {
 protected:
  void SetUp() override { ASSERT_EQ(cusolverDnCreateParams(&params_), CUSOLVER_STATUS_SUCCESS); }
  void TearDown() override { cusolverDnDestroyParams(params_); }

  std::int32_t potrf(cublasFillMode_t uplo, Tensor& a, const Columns& like) {
    std::size_t device = 0, host = 0;
    EXPECT_EQ(cusolverDnXpotrf_bufferSize(cuda::solver(ctx), params_, uplo, like.cols, CUDA_R_64F,
                                          a.view().raw(), like.ld, CUDA_R_64F, &device, &host),
              CUSOLVER_STATUS_SUCCESS);
    Tensor work = bytes(device), info = Tensor::empty(ctx, {1}, DType::i32);
    std::vector<std::byte> host_work(host);
    EXPECT_EQ(cusolverDnXpotrf(cuda::solver(ctx), params_, uplo, like.cols, CUDA_R_64F,
                               a.view().raw(), like.ld, CUDA_R_64F, work.view().raw(), device,
                               host_work.data(), host, info.view().data<std::int32_t>()),
              CUSOLVER_STATUS_SUCCESS);
    return status(info);
  }
  std::int32_t potri(cublasFillMode_t uplo, Tensor& a, const Columns& like) {
    int words = 0;
    const int n = static_cast<int>(like.cols), ld = static_cast<int>(like.ld);
    auto* data = a.view().data<double>();
    EXPECT_EQ(cusolverDnDpotri_bufferSize(cuda::solver(ctx), uplo, n, data, ld, &words),
              CUSOLVER_STATUS_SUCCESS);
    Tensor work = Tensor::empty(ctx, {std::max(words, 1)}, DType::f64);
    Tensor info = Tensor::empty(ctx, {1}, DType::i32);
    EXPECT_EQ(cusolverDnDpotri(cuda::solver(ctx), uplo, n, data, ld, work.view().data<double>(),
                               words, info.view().data<std::int32_t>()),
              CUSOLVER_STATUS_SUCCESS);
    return status(info);
  }
  Tensor bytes(std::size_t count) {
    return Tensor::empty(ctx, {static_cast<std::int64_t>(count / 8 + 1)}, DType::f64);
  }
  cusolverDnParams_t params_ = nullptr;
};

TEST_F(Solvers, FactorAndInvertInOneTriangle) {
  const Columns spd = product(factor(), flipped(factor()));
  for (const auto uplo : kTriangles) {
    const Columns stored = half(uplo, spd);
    Tensor a = upload(stored);
    ASSERT_EQ(potrf(uplo, a, stored), 0);
    const Columns l = uplo == CUBLAS_FILL_MODE_LOWER ? factor() : flipped(factor());
    expect_near(download(a, stored), half(uplo, l));
    ASSERT_EQ(potri(uplo, a, stored), 0);
    Columns inverse = download(a, stored);
    for (std::int64_t j = 0; j < 3; ++j)
      for (std::int64_t i = 0; i < 3; ++i)
        if (std::isnan(inverse(i, j))) inverse(i, j) = inverse(j, i);
    expect_near(product(spd, inverse), make_columns(3, 3, [](auto i, auto j) { return i == j; }));
  }
}

TEST_F(Solvers, ReportTheMinorThatIsNotPositiveDefinite) {
  Columns bad = product(factor(), flipped(factor()));
  bad(1, 1) = 1;  // The minor of order 2 becomes 4 - 4 = 0.
  for (const auto uplo : kTriangles) {
    const Columns stored = half(uplo, bad);
    Tensor a = upload(stored);
    EXPECT_EQ(potrf(uplo, a, stored), 2);
  }
}

TEST_F(Solvers, LeaveEigenvectorsInColumns) {
  // q diag(1, 2, 4) q' for a q whose rows and columns differ, whatever the signs of its columns.
  constexpr double kVectors[3][3] = {{2, -2, 1}, {1, 2, 2}, {-2, -1, 2}};
  const Columns q = make_columns(3, 3, [&](auto i, auto j) { return kVectors[i][j] / 3; });
  const Columns x = product(
      make_columns(3, 3, [&](auto i, auto j) { return q(i, j) * static_cast<double>(1 << j); }),
      flipped(q));
  for (const auto uplo : kTriangles) {
    const Columns stored = half(uplo, x);
    Tensor a = upload(stored), w = Tensor::empty(ctx, {3}, DType::f64);
    std::size_t device = 0, host = 0;
    ASSERT_EQ(cusolverDnXsyevd_bufferSize(cuda::solver(ctx), params_, CUSOLVER_EIG_MODE_VECTOR,
                                          uplo, 3, CUDA_R_64F, a.view().raw(), stored.ld,
                                          CUDA_R_64F, w.view().raw(), CUDA_R_64F, &device, &host),
              CUSOLVER_STATUS_SUCCESS);
    Tensor work = bytes(device), info = Tensor::empty(ctx, {1}, DType::i32);
    std::vector<std::byte> host_work(host);
    ASSERT_EQ(cusolverDnXsyevd(cuda::solver(ctx), params_, CUSOLVER_EIG_MODE_VECTOR, uplo, 3,
                               CUDA_R_64F, a.view().raw(), stored.ld, CUDA_R_64F, w.view().raw(),
                               CUDA_R_64F, work.view().raw(), device, host_work.data(), host,
                               info.view().data<std::int32_t>()),
              CUSOLVER_STATUS_SUCCESS);
    EXPECT_EQ(status(info), 0);
    EXPECT_TRUE(testing::near(testing::device_values(ctx, w), std::vector<double>{1, 2, 4}, 1e-12));
    const Columns v = download(a, stored);
    for (std::int64_t i = 0; i < 3; ++i)
      for (std::int64_t j = 0; j < 3; ++j)
        EXPECT_NEAR(std::abs(v(i, j)), std::abs(q(i, j)), 1e-12) << i << " " << j;
  }
}

}  // namespace
}  // namespace dkfac
