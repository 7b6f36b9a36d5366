#include "kfac/inverse/factor_form.h"

#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/error.h"

#include "kfac/inverse/apply_factor.h"
#include "kfac/inverse/factor_plan.h"
#include "kfac/inverse/residual.h"
#include "kfac/inverse/robust_inverse.h"

namespace dkfac::kfac {
namespace {

// Saved states hold these numbers.
TEST(FactorForm, KeepsTheIndicesOfSavedStates) {
  const std::vector<const FactorForm*> forms{FactorForm::inverse,  FactorForm::cholesky,
                                             FactorForm::eigen,    FactorForm::low_rank,
                                             FactorForm::diagonal, FactorForm::blocks};
  ASSERT_EQ(forms.size(), kForms);
  for (int i = 0; i < static_cast<int>(kForms); ++i) {
    const FactorForm* form = forms[static_cast<std::size_t>(i)];
    EXPECT_EQ(form->index, i);
    EXPECT_EQ(FactorForm::at(i), form);
  }
}

TEST(FactorForm, SaysWhatItStores) {
  FactorPlan plan{.dim = 7, .groups = 1, .rows = 3};
  const auto shapes = [&plan](const FactorForm* form) {
    plan.form = form;
    EXPECT_EQ(plan.statistic_numel(), plan.average_shape().numel());
    return std::pair(plan.average_shape(), plan.inverse_shape());
  };
  for (const FactorForm* form : {FactorForm::inverse, FactorForm::cholesky, FactorForm::eigen})
    EXPECT_EQ(shapes(form), std::pair(Shape({28}), Shape({1, 7, 7}))) << form->name;
  EXPECT_EQ(shapes(FactorForm::low_rank), std::pair(Shape({3, 7}), Shape({1, 3, 7})));
  EXPECT_EQ(shapes(FactorForm::diagonal), std::pair(Shape({7}), Shape({1, 1, 7})));
  plan = {.dim = 3, .groups = 3, .form = FactorForm::blocks, .whole = 7};
  EXPECT_EQ(plan.width(), 7);
  EXPECT_EQ(plan.statistic_numel(), 3 * 6);
  EXPECT_EQ(plan.inverse_shape(), Shape({3, 3, 3}));
}

// A triangle says what is above the diagonal by the form alone.
TEST(FactorForm, UnpacksWhatItsTriangleMeans) {
  Context ctx;
  std::vector<double> triangle{1, 2, 3}, square(4);
  const auto unpacked = [&](const FactorForm* form) {
    square = {9, 9, 9, 9};
    form->unpack(ctx, view_of(triangle.data(), {3}), view_of(square.data(), {2, 2}));
    return square;
  };
  EXPECT_EQ(unpacked(FactorForm::inverse), (std::vector<double>{1, 2, 2, 3}));
  EXPECT_EQ(unpacked(FactorForm::cholesky), (std::vector<double>{1, 0, 2, 3}));
}

TEST(FactorForm, RefusesWhatItHasNot) {
  Context ctx;
  double memory[4] = {1, 0, 0, 1};
  const TensorView square = view_of(memory, {2, 2});
  for (const FactorForm* form : {FactorForm::eigen, FactorForm::diagonal}) {
    EXPECT_THROW(form->apply(ctx, Side::left, {form, square}, {square, {}}, {square, {}}),
                 InvalidArgument);
    EXPECT_THROW((void)form->factorise(ctx, {}, {square, 1}, square), InvalidArgument);
    EXPECT_THROW(form->write_clipped(ctx, square, square, square), InvalidArgument);
  }
}

}  // namespace
}  // namespace dkfac::kfac
