#pragma once

#include <cstddef>
#include <cstdint>

#include "dkfac/core/device.h"
#include "dkfac/core/layer_spec.h"
#include "dkfac/core/tensor_view.h"
#include "dkfac/kfac/options.h"

/// In which form a factor is kept: pure functions of specification, options and kind of device, so
/// that every rank knows it of every layer.
namespace dkfac::kfac {

/// What Factor::inverse holds.
enum class FactorForm : std::uint8_t {
  inverse,   ///< The damped inverse: one product per use.
  cholesky,  ///< Cholesky factor of the damped factor (block_triangular.h): cheaper to make.
  eigen,     ///< Eigenvectors in columns, eigenvalues in `values`.
  low_rank,  ///< `average` holds rows X, this rows Y with (X'X + s I)^-1 = (I - Y'Y) / s.
  diagonal   ///< The diagonal of a factor that has nothing else, without damping.
};
inline constexpr std::size_t kFactorForms = 5;

struct FactorPlan {
  std::int64_t dim = 0;  ///< 0: there is none.
  int groups = 1;
  FactorForm form = FactorForm::inverse;
  std::int64_t rows = 0;         ///< low_rank: most rows of one step over all ranks.
  std::int64_t sample_rows = 1;  ///< low_rank: of one sample; divides `rows`.

  [[nodiscard]] bool is_set() const { return dim > 0; }
  /// Of a statistic and of the average: [groups * packed_size(dim)]; low_rank: [rows * dim];
  /// diagonal: [dim].
  [[nodiscard]] std::int64_t statistic_numel() const;
  /// Order of the matrices that a rebuild factorises: dim; low_rank: rows; diagonal: 0.
  [[nodiscard]] std::int64_t factorised() const {
    if (form == FactorForm::diagonal) return 0;
    return form == FactorForm::low_rank ? rows : dim;
  }
  /// [groups,dim,dim]; low_rank: [1,rows,dim]; diagonal: [1,1,dim].
  [[nodiscard]] Shape inverse_shape() const;
};

/// Linear, Conv2d and Embedding have both; BatchNormFisher::full has `g` alone, of gamma and beta
/// one after the other (beta alone where gamma is fixed). Never FactorForm::cholesky on a GPU,
/// whose triangular solves and small blocks lose more than an explicit inverse costs. It is the
/// only thing that depends on the device: sizes do not, so that a state goes from one to the other.
[[nodiscard]] FactorPlan plan_a(const LayerSpec& spec, const CurvatureOptions& options,
                                Device device = Device::cpu());
[[nodiscard]] FactorPlan plan_g(const LayerSpec& spec, const CurvatureOptions& options,
                                Device device = Device::cpu());

/// Operations, in units of those of a large product: making the inverse from the average, and
/// applying it to a matrix of `columns` columns (for A: the outputs of the layer, for G: the width
/// of A). What plan_* minimise over an inverse's life.
[[nodiscard]] double refresh_operations(const FactorPlan& plan);
[[nodiscard]] double apply_operations(const FactorPlan& plan, std::int64_t columns);

}  // namespace dkfac::kfac
