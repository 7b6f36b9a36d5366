#include <filesystem>
#include <functional>
#include <string>

#include <gtest/gtest.h>

#include "dkfac/comm/in_process.h"
#include "dkfac/kfac/preconditioner.h"
#include "dkfac/optim/optimizer.h"

#include "kfac/failing_layer.h"
#include "support/natural_gradient.h"
#include "support/near.h"
#include "support/temp_folder.h"

namespace dkfac::testing {
namespace {

TEST(FailedInverse, LeavesThePlainGradientAndSaysSoWhileThereIsNoGoodOne) {
  for (const int ranks : {1, 2, 3})
    comm::run_ranks(ranks, [](auto comm) {
      OneLayer layer(comm);
      const kfac::StepReport report = layer.step(false);
      EXPECT_FALSE(report.updated);
      EXPECT_TRUE(report.agreement.may_update());
      EXPECT_TRUE(report.statistics_refreshed);
      EXPECT_EQ(report.without_inverse, (std::vector<std::string>{"fc"}));
      EXPECT_EQ(report.failed_factors, comm->rank() == 0 ? 1 : 0);
      EXPECT_EQ(layer.gradient, (std::vector<double>{3, 4}));
      const kfac::StepReport next = layer.step(true);
      EXPECT_TRUE(next.updated);
      EXPECT_TRUE(next.without_inverse.empty());
      EXPECT_FALSE(near(layer.gradient, std::vector<double>{3, 4}, 0.1));
    });
}

/// A good layer beside one whose A has no inverse; `fraction` as
/// DistributionOptions::grad_worker_fraction.
TEST(FailedInverse, OfSomeLayersIsNamedOnEveryRank) {
  for (const double fraction : {0.0, 1.0})
    comm::run_ranks(2, [fraction](auto comm) {
      kfac::CurvatureOptions options = hopeless();
      options.distribution.grad_worker_fraction = fraction;
      kfac::Preconditioner preconditioner(comm, options);
      const LinearSpec spec{.in = 2, .out = 1, .bias = false};
      const auto good = preconditioner.add_layer("good", spec);
      const auto bad = preconditioner.add_layer("bad", spec);
      (void)preconditioner.add_layer("plain", PlainSpec{.weight = 3});
      const std::vector<double> x{2, 1, 1, -1}, equal{1, 1, 1, 1}, dy{0.5, 0.5};
      for (int step = 0; step < 2; ++step) {
        preconditioner.record_input(good, view_of(x.data(), {2, 2}));
        preconditioner.record_input(bad, view_of(equal.data(), {2, 2}));
        preconditioner.record_grad_output(bad, view_of(dy.data(), {2, 1}));
        preconditioner.record_grad_output(good, view_of(dy.data(), {2, 1}));
        std::vector<double> of_good{3, 4}, of_bad{3, 4};
        const std::vector<kfac::LayerGrad> grads{{good, view_of(of_good.data(), {1, 2}), {}},
                                                 {bad, view_of(of_bad.data(), {1, 2}), {}}};
        const kfac::StepReport report = preconditioner.step(grads);
        EXPECT_TRUE(report.updated);
        EXPECT_EQ(report.without_inverse, (std::vector<std::string>{"bad"}));
        EXPECT_EQ(of_bad, (std::vector<double>{3, 4}));
        EXPECT_FALSE(near(of_good, std::vector<double>{3, 4}, 0.1));
      }
    });
}

TEST(FailedInverse, LeavesTheGradientAloneWhichTheClipThenDoesNotShorten) {
  for (const double fraction : {0.0, 1.0})
    comm::run_ranks(2, [fraction](auto comm) {
      kfac::CurvatureOptions options = hopeless();
      options.distribution.grad_worker_fraction = fraction;
      options.kl_clip = 1e-6;
      kfac::Preconditioner preconditioner(comm, options);
      const LinearSpec spec{.in = 2, .out = 1, .bias = false};
      const auto good = preconditioner.add_layer("good", spec);
      const auto bad = preconditioner.add_layer("bad", spec);
      const std::vector<double> x{2, 1, 1, -1}, equal{1, 1, 1, 1}, dy{0.5, 0.5};
      preconditioner.record_input(good, view_of(x.data(), {2, 2}));
      preconditioner.record_input(bad, view_of(equal.data(), {2, 2}));
      preconditioner.record_grad_output(bad, view_of(dy.data(), {2, 1}));
      preconditioner.record_grad_output(good, view_of(dy.data(), {2, 1}));
      std::vector<double> of_good{3, 4}, of_bad{3, 4};
      const std::vector<kfac::LayerGrad> grads{{good, view_of(of_good.data(), {1, 2}), {}},
                                               {bad, view_of(of_bad.data(), {1, 2}), {}}};
      const kfac::StepReport report = preconditioner.step(grads, Stream::cpu(), {.lr = 1});
      EXPECT_EQ(report.without_inverse, (std::vector<std::string>{"bad"}));
      EXPECT_LT(report.kl_factor, 1e-2);
      EXPECT_EQ(of_bad, (std::vector<double>{3, 4}));
    });
}

TEST(FailedInverse, LeavesParametersOfTheOptimizerToo) {
  std::vector<double> weight{1, 2}, gradient{3, 4};
  const auto optimizer =
      optim::make_kfac(comm::make_self(), optim::KfacOptions{.curvature = hopeless()});
  const auto fc = optimizer->add_layer(
      "fc", LinearSpec{.in = 2, .out = 1, .bias = false},
      {.weight = view_of(weight.data(), {1, 2}), .weight_grad = view_of(gradient.data(), {1, 2})});
  optimizer->prepare();
  const auto step = [&](std::vector<double> x) {
    const std::vector<double> dy{0.5, 0.5};
    optimizer->record_input(fc, view_of(x.data(), {2, 2}), Stream::cpu(), {});
    optimizer->record_grad_output(fc, view_of(dy.data(), {2, 1}), Stream::cpu(), {});
    optimizer->grads_ready(fc, Stream::cpu(), {});
    return optimizer->step({.lr = 0.1}, Stream::cpu());
  };
  const kfac::StepReport report = step({1, 1, 1, 1});
  EXPECT_FALSE(report.updated);
  EXPECT_EQ(report.without_inverse, (std::vector<std::string>{"fc"}));
  EXPECT_EQ(weight, (std::vector<double>{1, 2}));
  EXPECT_TRUE(step({2, 1, 1, -1}).updated);
  EXPECT_NE(weight, (std::vector<double>{1, 2}));
}

// The first of three features is the sum of the others: (1, -1, -1) is a null vector of A, and one
// of the vectors of signs that decompositions are tried on.
TEST(NullVectorOfSigns, DoesNotMakeAGoodDecompositionABadOne) {
  for (const auto method : {kfac::InverseMethod::eigen, kfac::InverseMethod::ekfac}) {
    kfac::CurvatureOptions options = natural_gradient();
    options.damping = 1e-2;
    options.dtype = DType::f64;
    options.inverse.method = method;
    options.refresh.inverse_interval = 10;
    kfac::Preconditioner preconditioner(comm::make_self(), options);
    const auto fc = preconditioner.add_layer("fc", LinearSpec{.in = 3, .out = 1, .bias = false});
    const std::vector<double> x{3, 1, 2, 5, 4, 1}, dy{1, 1};
    std::vector<double> dw{1, 1, 1};
    preconditioner.record_input(fc, view_of(x.data(), {2, 3}));
    preconditioner.record_grad_output(fc, view_of(dy.data(), {2, 1}));
    const std::vector<kfac::LayerGrad> grads{{fc, view_of(dw.data(), {1, 3}), {}}};
    const kfac::StepReport report = preconditioner.step(grads);
    EXPECT_TRUE(report.updated);
    EXPECT_EQ(report.inverses[0], 2);
    // (4 A + lambda I)^-1 (1, 1, 1), where 4 is G; to the digits given.
    EXPECT_TRUE(near(dw, std::vector<double>{-33.3107, 33.3039, 33.3854}, 2e-6));
  }
}

TEST(FailedInverse, KeepsTheLastGoodOne) {
  OneLayer layer(comm::make_self());
  EXPECT_EQ(layer.step(true).failed_factors, 0);
  const std::vector<double> good = layer.gradient;
  EXPECT_FALSE(near(good, std::vector<double>{3, 4}, 0.1));
  EXPECT_EQ(layer.step(false).failed_factors, 1);
  EXPECT_EQ(layer.gradient, good);
}

TEST(FailedInverse, IsOfTheStepThatTheReportNames) {
  OneLayer layer(comm::make_self());
  (void)layer.step(true);
  const kfac::StepReport report = layer.step(false);
  EXPECT_EQ(report.inverses.back(), 1);
  EXPECT_EQ(report.inverses_step, 2);
  EXPECT_EQ(report.update_step, 2);
}

TEST(ReportOfAStep, NamesNoStepWhereNothingWasRebuiltOrUpdated) {
  OneLayer layer(comm::make_self());
  EXPECT_EQ(layer.step(true).inverses_step, 1);
  const std::vector<kfac::LayerGrad> grads{{layer.fc, view_of(layer.gradient.data(), {1, 2}), {}}};
  const StepArgs no_data{.flags = {.data_error = true}};
  const kfac::StepReport rejected = layer.preconditioner.step(grads, Stream::cpu(), no_data);
  EXPECT_EQ(rejected.step, 2);
  EXPECT_EQ(rejected.inverses_step, 0);
  EXPECT_EQ(rejected.update_step, 0);
}

TEST(FailedInverse, IsAnErrorAfterTooManyInARow) {
  OneLayer layer(comm::make_self());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(layer.step(false).failed_factors, 1);
  EXPECT_THROW((void)layer.step(true), NumericError);
}

TEST(FailedInverse, IsForgottenAfterASuccess) {
  OneLayer layer(comm::make_self());
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 2; ++i) EXPECT_EQ(layer.step(false).failed_factors, 1);
    EXPECT_EQ(layer.step(true).failed_factors, 0);
  }
}

TEST(FailedInverse, IsAnErrorOnEveryRankThatNamesLayerAndOwner) {
  comm::run_ranks(3, [](auto comm) {
    OneLayer layer(comm);
    int failed = 0;
    for (int i = 0; i < 3; ++i) failed += layer.step(false).failed_factors;
    EXPECT_EQ(failed, comm->rank() == 0 ? 3 : 0);  // only the owner inverts
    try {
      (void)layer.step(false);
      ADD_FAILURE() << "no error on rank " << comm->rank();
    } catch (const NumericError& error) {
      const std::string what = error.what();
      EXPECT_NE(what.find("layer 'fc', owned by rank 0"), std::string::npos) << what;
      EXPECT_NE(what.find("damping"), std::string::npos) << what;
    }
  });
}

// D11
TEST(FailedInverse, IsSavedByItsOwnerAndNamedByEveryRank) {
  const TempFolder folder;
  comm::run_ranks(2, [&folder](auto comm) {
    kfac::CurvatureOptions options = hopeless();
    options.inverse.failure_folder = folder.path().string();
    OneLayer layer(comm, options);
    const auto files = [&folder] {
      return std::distance(std::filesystem::directory_iterator(folder.path()), {});
    };
    for (int i = 0; i < 2; ++i) (void)layer.step(false);
    comm->barrier("files");
    EXPECT_EQ(files(), 0);  // not yet: two failures are tolerated
    comm->barrier("files");
    (void)layer.step(false);
    try {
      (void)layer.step(false);
      ADD_FAILURE() << "no error on rank " << comm->rank();
    } catch (const NumericError& error) {
      const std::string what = error.what();
      EXPECT_NE(what.find("factor A of layer 'fc', owned by rank 0"), std::string::npos) << what;
      EXPECT_NE(what.find(folder.path().string()), std::string::npos) << what;
      const auto saved = std::filesystem::directory_iterator(folder.path())->path();
      EXPECT_EQ(files(), 1);
      EXPECT_EQ(saved.filename().string().rfind("fc.a.", 0), 0U) << saved;
      EXPECT_NE(what.find(saved.string()), std::string::npos) << what;
      EXPECT_GT(std::filesystem::file_size(saved), 4 * sizeof(double));
    }
  });
}

TEST(FailedInverse, IsSavedAsTheFactorThatTheErrorNames) {
  const TempFolder folder;
  kfac::CurvatureOptions options = hopeless();
  options.inverse.max_failed_refreshes = 0;
  options.inverse.failure_folder = folder.path().string();
  kfac::Preconditioner preconditioner(comm::make_self(), options);
  const auto fc = preconditioner.add_layer("fc", LinearSpec{.in = 2, .out = 2, .bias = false});
  const std::vector<double> equal{1, 1, 1, 1};
  std::vector<double> gradient{3, 4, 5, 6};
  const std::vector<kfac::LayerGrad> grads{{fc, view_of(gradient.data(), {2, 2}), {}}};
  const auto step = [&] {
    preconditioner.record_input(fc, view_of(equal.data(), {2, 2}));
    preconditioner.record_grad_output(fc, view_of(equal.data(), {2, 2}));
    return preconditioner.step(grads);
  };
  EXPECT_EQ(step().failed_factors, 2);
  try {
    (void)step();
    ADD_FAILURE() << "no error";
  } catch (const NumericError& error) {
    const std::string what = error.what();
    EXPECT_NE(what.find("factor G of layer 'fc'"), std::string::npos) << what;
    EXPECT_NE(what.find("/fc.g."), std::string::npos) << what;
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 2);
}

TEST(FailedInverse, IsAnErrorAllTheSameWhereItCannotBeSaved) {
  const TempFolder folder;
  kfac::CurvatureOptions options = hopeless();
  options.inverse.failure_folder =
      folder.write("file", {}).string();  // no folder can be created there
  OneLayer layer(comm::make_self(), options);
  for (int i = 0; i < 3; ++i) (void)layer.step(false);
  try {
    (void)layer.step(true);
    ADD_FAILURE() << "no error";
  } catch (const NumericError& error) {
    EXPECT_EQ(std::string(error.what()).find("saved"), std::string::npos) << error.what();
  }
}

TEST(FailedInverse, IsAnErrorOfTheOptimizerToo) {
  optim::KfacOptions options{.curvature = hopeless()};
  options.curvature.inverse.max_failed_refreshes = 0;
  const auto optimizer = optim::make_kfac(comm::make_self(), options);
  std::vector<double> w{1, 1}, g{1, 1}, x{1, 1}, dy{1};
  const auto fc = optimizer->add_layer("fc", LinearSpec{.in = 2, .out = 1, .bias = false},
                                       {view_of(w.data(), {2}), {}, view_of(g.data(), {2}), {}});
  optimizer->prepare();
  const auto step = [&] {
    optimizer->record_input(fc, view_of(x.data(), {1, 2}), Stream::cpu(), {});
    optimizer->record_grad_output(fc, view_of(dy.data(), {1, 1}), Stream::cpu(), {});
    optimizer->grads_ready(fc, Stream::cpu(), {});
    return optimizer->step({.lr = 0.25, .flags = {}}, Stream::cpu());
  };
  EXPECT_EQ(step().failed_factors, 1);
  EXPECT_THROW((void)step(), NumericError);
  EXPECT_EQ(w, (std::vector<double>{1, 1}));
}

TEST(Statistic, ThatOverflowsInTheSumOverRanksNeverEntersTheAverage) {
  // Each rank's f32 part is finite, their sum is not; the step's flags do not cover that.
  comm::run_ranks(2, [](auto comm) {
    kfac::CurvatureOptions options = natural_gradient();
    options.statistics.new_weight = 0.5;
    kfac::Preconditioner preconditioner(comm, options);
    const auto fc = preconditioner.add_layer("fc", LinearSpec{.in = 1, .out = 1, .bias = false});
    float g = 0;
    const std::vector<kfac::LayerGrad> grads{{fc, view_of(&g, {1, 1}), {}}};
    for (const float x : {1.0F, 1.7e19F, 1.0F}) {
      const float dy = 0.5F;
      g = 1;
      preconditioner.record_input(fc, view_of(&x, {1, 1}), Stream::cpu(), {1, 1});
      preconditioner.record_grad_output(fc, view_of(&dy, {1, 1}), Stream::cpu(), {1, 2});
      const kfac::StepReport report = preconditioner.step(grads);
      EXPECT_TRUE(report.updated);
      const bool bad = x != 1.0F;
      EXPECT_EQ(report.failed_factors, bad && comm->rank() == 0 ? 1 : 0);
      EXPECT_GT(g, 0.0F);
      EXPECT_LT(g, 100.0F);
    }
  });
}

/// Returns the error on two ranks whose f32 parts of one statistic are finite and whose sums are
/// not, unless `good(step)`; "" without an error. `change`: the damping changes in every step, so
/// that the inverse is rebuilt from the average that is kept.
std::string refused_again_and_again(bool change, bool ekfac,
                                    const std::function<bool(int step)>& good) {
  std::string said;
  comm::run_ranks(2, [&](auto comm) {
    kfac::CurvatureOptions options = natural_gradient();
    options.inverse.max_failed_refreshes = 2;
    if (ekfac) {
      options.inverse.method = kfac::InverseMethod::ekfac;
      options.refresh.inverse_interval = 100;
      options.distribution.grad_worker_fraction = 1;
    }
    kfac::Preconditioner preconditioner(comm, options);
    const auto fc = preconditioner.add_layer("fc", LinearSpec{.in = 1, .out = 1, .bias = false});
    float g = 0;
    const std::vector<kfac::LayerGrad> grads{{fc, view_of(&g, {1, 1}), {}}};
    try {
      for (int step = 0; step < 6; ++step) {
        // x^2 is 2.9e38 for A; EKFAC: (x dy)^2 is, while A and G are far from it.
        const bool fits = good(step);
        const float x = fits ? 1.0F : ekfac ? 1e9F : 1.7e19F;
        const float dy = !fits && ekfac ? 1.7e10F : 0.5F;
        if (change) preconditioner.set_damping(1e-3 * (1 + step));
        preconditioner.record_input(fc, view_of(&x, {1, 1}), Stream::cpu(), {1, 1});
        preconditioner.record_grad_output(fc, view_of(&dy, {1, 1}), Stream::cpu(), {1, 1});
        g = 1;
        const kfac::StepReport report = preconditioner.step(grads);
        EXPECT_TRUE(report.updated);
        EXPECT_EQ(report.failed_factors, !fits && comm->rank() == 0 ? 1 : 0) << step;
      }
    } catch (const NumericError& error) {
      if (comm->rank() == 1) said = error.what();
    }
  });
  return said;
}

TEST(Statistic, ThatIsRefusedTooOftenIsAnErrorWhateverTheInverseDoes) {
  const auto first = [](int step) { return step == 0; };
  for (const bool change : {false, true}) {
    const std::string said = refused_again_and_again(change, false, first);
    EXPECT_NE(said.find("factor A of layer 'fc', owned by rank 0, had a statistic whose sum was "
                        "not finite more than 2 times in a row"),
              std::string::npos)
        << said;
    // Control: two in a row are tolerated.
    EXPECT_EQ(refused_again_and_again(change, false, [](int step) { return step % 3 == 0; }), "");
  }
}

TEST(Statistic, OfEkfacScalesIsCountedToo) {
  const std::string said = refused_again_and_again(false, true, [](int step) { return step == 0; });
  EXPECT_NE(said.find("had EKFAC scales"), std::string::npos) << said;
  EXPECT_EQ(refused_again_and_again(false, true, [](int step) { return step % 3 == 0; }), "");
}

}  // namespace
}  // namespace dkfac::testing
