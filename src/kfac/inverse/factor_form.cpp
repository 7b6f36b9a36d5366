#include "kfac/inverse/factor_form.h"

#include <array>

#include "dkfac/core/error.h"
#include "dkfac/core/ops.h"

#include "kfac/inverse/factor_plan.h"
#include "kfac/schedule/backend_step.h"

namespace dkfac::kfac {

const FactorForm* FactorForm::at(int index) {
  return std::array{inverse, cholesky, eigen, low_rank, diagonal, blocks}.at(
      static_cast<std::size_t>(index));
}

Shape FactorForm::average_shape(const FactorPlan& plan) const {
  return {ops::packed_size(plan.dim)};
}

std::int64_t FactorForm::inverse_rows(const FactorPlan& plan) const { return plan.dim; }

void FactorForm::write_average(Context& ctx, ConstTensorView average, TensorView m) const {
  ops::unpack_lower(ctx, average, m, ops::Upper::filled);
}

void FactorForm::unpack(Context& ctx, ConstTensorView triangle, TensorView square) const {
  ops::unpack_lower(ctx, triangle, square, ops::Upper::filled);
}

FactorForm::Costs FactorForm::matrices(const FactorPlan& plan, double refresh, double apply) {
  const auto n = static_cast<double>(plan.dim), square = plan.groups * n * n;
  return {refresh * square * n, apply * square, square * n};
}

double FactorForm::build_flops(const FactorPlan& plan, double rows) const {
  const auto n = static_cast<double>(plan.dim);
  return rows * plan.groups * n * (n + 1);
}

void FactorForm::trace(Context& ctx, const FactorPlan& plan, ConstTensorView average,
                       TensorView traces) const {
  kernels::packed_diagonals(ctx, average, plan.dim, traces);
}

void FactorForm::write_matrix(Context& ctx, ConstTensorView average, TensorView square) const {
  ops::unpack_lower(ctx, average, square, ops::Upper::untouched);
}

void FactorForm::commit(Context& ctx, ConstTensorView from, TensorView to) const {
  ops::copy(ctx, from, to);
}

void FactorForm::refuse(const char* what) const {
  throw InvalidArgument(detail::concat("[factor form] ", name, " has no ", what));
}

}  // namespace dkfac::kfac
