#pragma once

#include <cstdint>
#include <vector>

#include "dkfac/core/device.h"
#include "dkfac/core/layer_spec.h"
#include "dkfac/core/tensor_view.h"
#include "dkfac/kfac/options.h"

#include "kfac/inverse/factor_form.h"

/// The form in which a factor is stored. These are pure functions of specification, options and
/// kind of device, so every rank can compute it for every layer.
namespace dkfac::kfac {

struct FactorPlan {
  std::int64_t dim = 0;  ///< 0: no factor. blocks: the width of a block.
  int groups = 1;        ///< Of a convolution; blocks: the number of blocks, of one group.
  const FactorForm* form = FactorForm::inverse;
  /// blocks: width of the whole factor. The last block may be narrower than `dim`: it is the
  /// leading part of a matrix whose other elements are those of a zero factor.
  std::int64_t whole = 0;
  std::int64_t taps = 1;  ///< blocks: their columns come in so many pieces, at equal distances.
  std::int64_t rows = 0;  ///< low_rank: maximum of rows per step over all ranks.
  std::int64_t sample_rows = 1;  ///< low_rank: rows per sample; divides `rows`.

  [[nodiscard]] bool is_set() const { return dim > 0; }
  [[nodiscard]] bool is_explicit() const { return form->is_explicit(); }
  /// Whether eigenvalues are stored. The damping is then added where they are applied; else it is
  /// in the inverse.
  [[nodiscard]] bool has_values() const { return form == FactorForm::eigen; }
  /// Whether a statistic is the rows of a step, not their second moment.
  [[nodiscard]] bool has_rows() const { return form == FactorForm::low_rank; }
  /// Whether nothing is multiplied or factorised: operations on the factor are those of
  /// diagonal_factor.h.
  [[nodiscard]] bool is_diagonal() const { return form == FactorForm::diagonal; }
  /// Whether only diagonal blocks of the factor are kept (blocks_form.cpp). Each is a group, with
  /// an inverse and failures of its own, and all have one damping.
  [[nodiscard]] bool has_blocks() const { return form == FactorForm::blocks; }
  /// Width of the factor of one group, whose damping is one number.
  [[nodiscard]] std::int64_t width() const { return has_blocks() ? whole : dim; }

  /// Average of one group: [packed_size(dim)]; low_rank: [rows,dim]; diagonal: [dim].
  [[nodiscard]] Shape average_shape() const { return form->average_shape(*this); }
  /// Number of elements of a statistic, and of the average, of all groups.
  [[nodiscard]] std::int64_t statistic_numel() const { return groups * average_shape().numel(); }
  /// Width of the packed triangles that a statistic consists of (low_rank has none).
  [[nodiscard]] std::int64_t triangle() const { return is_diagonal() ? 1 : dim; }
  /// Order of the matrices that a rebuild factorises: dim; low_rank: rows; diagonal: 1.
  [[nodiscard]] std::int64_t factorised() const { return form->inverse_rows(*this); }
  /// [groups,factorised(),dim]
  [[nodiscard]] Shape inverse_shape() const { return {groups, factorised(), dim}; }
};

/// Number of groups of a layer that have a damping, and traces, of their own.
[[nodiscard]] inline int damped_groups(const FactorPlan& a, const FactorPlan& g) {
  return a.has_blocks() || g.has_blocks() ? 1 : g.groups;
}

/// Elements of an inverse as it is sent to another rank: the dampings, triangles where they are all
/// there is to it, and eigenvalues.
[[nodiscard]] std::int64_t sent_numel(const FactorPlan& plan);

/// Plans before options choose a form: an explicit inverse, unless the layer determines it (the A
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
/// The factor of a plan in blocks as wide as `block_width` allows (InverseOptions); the plan itself
/// where the factor is not wider, where the layer has groups, and where the width is 0 or -1.
[[nodiscard]] FactorPlan in_blocks_a(const FactorPlan& a, const LayerSpec& spec, int block_width);
[[nodiscard]] FactorPlan in_blocks_g(const FactorPlan& g, const LayerSpec& spec, int block_width);
/// A plan, without its sizes, in each form that these functions may choose.
[[nodiscard]] std::vector<FactorPlan> possible_plans(const CurvatureOptions& options,
                                                     Device device);

/// Cost of computing the inverse from the average, and of applying it to a matrix of `columns`
/// columns, in operations of a large product. `columns` is the number of outputs of the layer for
/// A, and the width of A for G. plan_a() and plan_g() minimise the total over an inverse's
/// lifetime.
[[nodiscard]] inline double refresh_operations(const FactorPlan& plan) {
  return plan.form->costs(plan).refresh_operations;
}
[[nodiscard]] inline double apply_operations(const FactorPlan& plan, std::int64_t columns) {
  return static_cast<double>(columns) * plan.form->costs(plan).apply_operations;
}
/// Floating-point operations of computing a statistic from `rows` rows (samples times positions),
/// and of inverting the factor, as reported: rows * groups * d (d + 1), triangles only, and
/// groups * d^3. low_rank: 0 and 2 rows^2 d + rows^3; diagonal: rows and d.
[[nodiscard]] inline double build_flops(const FactorPlan& plan, double rows) {
  return plan.form->build_flops(plan, rows);
}
[[nodiscard]] inline double inverse_flops(const FactorPlan& plan) {
  return plan.form->costs(plan).inverse_flops;
}

}  // namespace dkfac::kfac
