#pragma once

#include <cstddef>
#include <cstdint>

#include "dkfac/core/context.h"
#include "dkfac/core/tensor_view.h"
#include "dkfac/kfac/report.h"

namespace dkfac::kfac {

struct AppliedFactor;
struct Columns;
struct FactorGroup;
struct FactorPlan;
struct Inverted;
struct InverseResult;
struct Solvers;

/// The side of a gradient on which a factor is applied: G or A.
enum class Side : std::uint8_t { left, right };

/// The form of a factor: what is stored of it, what that costs, and how it is rebuilt and applied.
/// There is one object of each form, in a file of its own; all others ask the object.
class FactorForm {
 public:
  static const FactorForm* const inverse;  ///< The damped inverse, applied by one product.
  /// Blocked Cholesky factor of the damped factor (block_triangular.h): cheaper to compute.
  static const FactorForm* const cholesky;
  static const FactorForm* const eigen;  ///< Eigenvectors in columns, and eigenvalues.
  /// Rows X of the average, and rows Y with (X'X + s I)^-1 = (I - Y'Y) / s.
  static const FactorForm* const low_rank;
  static const FactorForm* const diagonal;  ///< A diagonal factor, without damping.
  static const FactorForm* const blocks;    ///< Inverses of diagonal blocks of the factor.
  /// The form with this `index`.
  static const FactorForm* at(int index);

  const char* const name;
  const int index;         ///< In saved states and in tables of kForms elements.
  const bool is_triangle;  ///< Whether a triangle of the inverse determines it: unpack().
  [[nodiscard]] bool is_explicit() const { return this == inverse; }

  // A group as it is stored.

  /// Shape of the average: a packed triangle unless the form says otherwise.
  [[nodiscard]] virtual Shape average_shape(const FactorPlan& plan) const;
  /// Rows of Factor::inverse, which are `dim` wide.
  [[nodiscard]] virtual std::int64_t inverse_rows(const FactorPlan& plan) const;
  /// Writes the matrix M[d,d] that an average represents.
  virtual void write_average(Context& ctx, ConstTensorView average, TensorView m) const;
  virtual void unpack(Context& ctx, ConstTensorView triangle, TensorView square) const;

  // All groups of a factor.

  /// Results of the functions of the same names (factor_plan.h), apply_operations for one column.
  struct Costs {
    double refresh_operations, apply_operations, inverse_flops;
  };
  [[nodiscard]] virtual Costs costs(const FactorPlan& plan) const = 0;
  /// The form that one group alone would have, with operations of the same cost.
  [[nodiscard]] virtual const FactorForm* of_group() const { return this; }
  [[nodiscard]] virtual double build_flops(const FactorPlan& plan, double rows) const;
  /// Computes the traces of the groups (f64[groups]), or their sum (f64[1]).
  virtual void trace(Context& ctx, const FactorPlan& plan, ConstTensorView average,
                     TensorView traces) const;
  /// The same of the factors' squares.
  virtual void squares(Context& ctx, const FactorPlan& plan, ConstTensorView average,
                       TensorView traces) const;

  // Rebuilding a group (robust_inverse.h).

  /// rebuild_inverse() of an average that is finite.
  virtual InverseResult rebuild(Context& ctx, const FactorGroup& block, double shift,
                                const Solvers& solvers) const;
  /// Writes the lower triangle of the matrix that is factorised, which is not damped yet.
  virtual void write_matrix(Context& ctx, ConstTensorView average, TensorView square) const;
  /// Tries to write the inverse of M + shift*I to `out`, and checks it.
  [[nodiscard]] virtual bool factorise(Context&, const Solvers&, const Inverted& /*m*/,
                                       TensorView /*out*/) const {
    refuse("factorisation");
  }
  /// Writes the inverse from s[n,n], where s s' is that of the damped write_matrix().
  virtual void write_clipped(Context&, ConstTensorView /*s*/, ConstTensorView /*average*/,
                             TensorView /*out*/) const {
    refuse("inverse from eigenvectors");
  }
  /// Copies a result to its destination.
  virtual void commit(Context& ctx, ConstTensorView from, TensorView to) const;
  /// The form of what later stages compute.
  [[nodiscard]] virtual const FactorForm* fallback() const { return this; }
  /// Diagonal element of the inverse of I/x; 0 where that inverse is zero.
  [[nodiscard]] virtual double identity(double x) const { return x; }

  /// Computes to = G^-1 from (Side::left) or to = from A^-1. `to` may be `from`, which is
  /// overwritten otherwise. Not for forms that need the layer's other factor.
  virtual void apply(Context&, Side, const AppliedFactor&, const Columns& /*from*/,
                     const Columns& /*to*/) const {
    refuse("inverse that is applied alone");
  }

 protected:
  constexpr FactorForm(const char* form_name, int form_index, bool triangle = false)
      : name(form_name), index(form_index), is_triangle(triangle) {}
  ~FactorForm() = default;
  FactorForm(const FactorForm&) = default;
  [[noreturn]] void refuse(const char* what) const;
  /// Costs of matrices, for each dim^3 and dim^2.
  static Costs matrices(const FactorPlan& plan, double refresh, double apply);
  /// Tries to write L of the damped write_matrix() to the lower triangle of square.
  [[nodiscard]] bool factorise_damped(Context& ctx, const Solvers& solvers, const Inverted& m,
                                      TensorView square) const;
};
inline constexpr std::size_t kForms = 6;

/// Cost of an operation of a Cholesky factorisation or inversion, in operations of a large product
/// (OpenBLAS, widths 512 to 4608: 75 to 200 against 235 GFLOP/s on one core).
inline constexpr double kFactorisation = 2;

/// One group of a factor.
struct FactorGroup {
  const FactorForm* form = FactorForm::inverse;
  ConstTensorView average;  ///< FactorPlan::average_shape()
  TensorView inverse;       ///< [d,d]; low_rank: [rows,d].
  TensorView values;        ///< [d], eigen only.
};

/// Outcome of an inversion. With `kept` the block is unchanged and the other fields are
/// meaningless.
struct InverseResult {
  InverseStage stage = InverseStage::kept;
  double shift = 0;                              ///< The damping in the inverse.
  const FactorForm* form = FactorForm::inverse;  ///< Of the inverse, see Factor::stored_form.
};

/// One group of a factor in the form in which it is applied.
struct AppliedFactor {
  const FactorForm* form = FactorForm::inverse;  ///< Neither eigen nor diagonal.
  ConstTensorView inverse;            ///< [d,d]; low_rank: [rows,d]; blocks: [blocks,b,b].
  double shift = 0;                   ///< low_rank only, on the host.
  ConstTensorView device_shift = {};  ///< low_rank only, on a device: f64[1].
  std::int64_t taps = 1;              ///< blocks only: FactorPlan::taps.
};

}  // namespace dkfac::kfac
