#pragma once

#include <cstddef>
#include <cstdint>

#include "dkfac/core/device.h"
#include "dkfac/core/layer_spec.h"
#include "dkfac/core/tensor_view.h"
#include "dkfac/kfac/options.h"

/// The form in which a factor is stored. These are pure functions of specification, options and
/// kind of device, so every rank can compute it for every layer.
namespace dkfac::kfac {

/// Contents of Factor::inverse.
enum class FactorForm : std::uint8_t {
  inverse,   ///< The damped inverse, applied by one product.
  cholesky,  ///< Cholesky factor of the damped factor (block_triangular.h): cheaper to compute.
  eigen,     ///< Eigenvectors in columns, eigenvalues in `values`.
  low_rank,  ///< `average` holds rows X, `inverse` rows Y with (X'X + s I)^-1 = (I - Y'Y) / s.
  diagonal   ///< A diagonal factor, without damping.
};
inline constexpr std::size_t kFactorForms = 5;
[[nodiscard]] const char* name_of(FactorForm form);

struct FactorPlan {
  std::int64_t dim = 0;  ///< 0: no factor.
  int groups = 1;
  FactorForm form = FactorForm::inverse;
  std::int64_t rows = 0;         ///< low_rank: maximum of rows per step over all ranks.
  std::int64_t sample_rows = 1;  ///< low_rank: rows per sample; divides `rows`.

  [[nodiscard]] bool is_set() const { return dim > 0; }
  /// Number of elements of a statistic, and of the average: [groups * packed_size(dim)]; low_rank:
  /// [rows * dim]; diagonal: [dim].
  [[nodiscard]] std::int64_t statistic_numel() const;
  /// Whether nothing is multiplied or factorised: operations on the factor are those of
  /// diagonal_factor.h.
  [[nodiscard]] bool is_diagonal() const { return form == FactorForm::diagonal; }
  /// Width of the packed triangles that a statistic consists of (low_rank has none).
  [[nodiscard]] std::int64_t triangle() const { return is_diagonal() ? 1 : dim; }
  /// Order of the matrices that a rebuild factorises: dim; low_rank: rows; diagonal: 0.
  [[nodiscard]] std::int64_t factorised() const {
    if (is_diagonal()) return 0;
    return form == FactorForm::low_rank ? rows : dim;
  }
  /// [groups,dim,dim]; low_rank: [1,rows,dim]; diagonal: [1,1,dim].
  [[nodiscard]] Shape inverse_shape() const;
};

/// Plans before options choose a form: FactorForm::inverse, unless the layer determines it (the A
/// of an Embedding is diagonal). Not set for layers without Kronecker factors.
[[nodiscard]] FactorPlan default_plan_a(const LayerSpec& spec);
[[nodiscard]] FactorPlan default_plan_g(const LayerSpec& spec);

/// Plans of the factors of a layer. NormFisher::full has `g` alone, over gamma followed by beta
/// (beta alone with a fixed gamma). FactorForm::cholesky is never chosen on a GPU, where triangular
/// solves and small blocks cost more than an explicit inverse. Nothing else depends on the device:
/// sizes do not, so a state can move between devices.
[[nodiscard]] FactorPlan plan_a(const LayerSpec& spec, const CurvatureOptions& options,
                                Device device = Device::cpu());
[[nodiscard]] FactorPlan plan_g(const LayerSpec& spec, const CurvatureOptions& options,
                                Device device = Device::cpu());

/// Cost of computing the inverse from the average, and of applying it to a matrix of `columns`
/// columns, in operations of a large product. `columns` is the number of outputs of the layer for
/// A, and the width of A for G. plan_a() and plan_g() minimise the total over an inverse's
/// lifetime.
[[nodiscard]] double refresh_operations(const FactorPlan& plan);
[[nodiscard]] double apply_operations(const FactorPlan& plan, std::int64_t columns);
/// Floating-point operations of computing a statistic from `rows` rows (samples times positions),
/// and of inverting the factor, as reported: rows * groups * d (d + 1), triangles only, and
/// groups * d^3. low_rank: 0 and 2 rows^2 d + rows^3; diagonal: rows and d.
[[nodiscard]] double build_flops(const FactorPlan& plan, double rows);
[[nodiscard]] double inverse_flops(const FactorPlan& plan);

}  // namespace dkfac::kfac
