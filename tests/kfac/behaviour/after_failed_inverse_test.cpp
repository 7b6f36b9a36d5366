#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/comm/in_process.h"
#include "dkfac/optim/optimizer.h"

#include "kfac/failing_layer.h"
#include "support/natural_gradient.h"
#include "support/saved_state.h"

// How training goes on after a factor has failed too often.
namespace dkfac::testing {
namespace {

/// Steps until a factor has failed more often than hopeless() tolerates.
void fail_too_often(OneLayer& layer) {
  for (int i = 0; i < 3; ++i) (void)layer.step(false);
}

TEST(AfterFailedInverse, EachStepThrowsAgainWithoutAChange) {
  for (const int ranks : {1, 3})
    comm::run_ranks(ranks, [](auto comm) {
      OneLayer layer(comm);
      fail_too_often(layer);
      for (int i = 0; i < 3; ++i) {
        EXPECT_TRUE(layer.preconditioner.wants_statistics());
        EXPECT_THROW((void)layer.step(true), NumericError);
        EXPECT_EQ(layer.gradient, (std::vector<double>{3, 4}));
      }
    });
}

TEST(AfterFailedInverse, AChangedDampingGoesOn) {
  for (const int ranks : {1, 3})
    comm::run_ranks(ranks, [](auto comm) {
      OneLayer layer(comm);
      fail_too_often(layer);
      EXPECT_THROW((void)layer.step(false), NumericError);
      layer.preconditioner.set_damping(1e-2);
      for (int i = 0; i < 2; ++i) {
        const kfac::StepReport report = layer.step(false);
        EXPECT_TRUE(report.updated);
        EXPECT_EQ(report.failed_factors, 0);
        EXPECT_NE(layer.gradient, (std::vector<double>{3, 4}));
      }
    });
}

TEST(AfterFailedInverse, ADampingThatChangesInEveryStepHidesNothing) {
  OneLayer layer(comm::make_self());
  for (int i = 0; i < 3; ++i) {
    layer.preconditioner.set_damping(1e-60 / (2 + i));
    EXPECT_EQ(layer.step(false).failed_factors, 1);
  }
  layer.preconditioner.set_damping(1e-61);
  EXPECT_THROW((void)layer.step(false), NumericError);
  // What was forgotten may fail as often again.
  for (int i = 0; i < 3; ++i) {
    layer.preconditioner.set_damping(1e-62 / (1 + i));
    EXPECT_EQ(layer.step(false).failed_factors, 1);
  }
  EXPECT_THROW((void)layer.step(false), NumericError);
}

TEST(AfterFailedInverse, AnEarlierStateGoesOnAsIfNothingHadFailed) {
  for (const int ranks : {1, 3})
    comm::run_ranks(ranks, [](auto comm) {
      OneLayer layer(comm), other(comm);
      (void)layer.step(true);
      (void)other.step(true);
      Saver saver;
      layer.preconditioner.visit_state(saver);
      fail_too_often(layer);
      EXPECT_THROW((void)layer.step(false), NumericError);
      const std::vector<SavedState> own{saver.state};
      Loader loader(own, 0);
      layer.preconditioner.visit_state(loader);
      for (int i = 0; i < 2; ++i) {
        EXPECT_TRUE(layer.step(true).updated);
        (void)other.step(true);
        EXPECT_EQ(layer.gradient, other.gradient);
      }
    });
}

TEST(AfterFailedInverse, ItsStateGoesOnWithMoreDamping) {
  OneLayer layer(comm::make_self());
  fail_too_often(layer);
  Saver saver;
  layer.preconditioner.visit_state(saver);
  const std::vector<SavedState> own{saver.state};
  for (const double lambda : {1e-2, 1e-60}) {
    kfac::CurvatureOptions options = hopeless();
    options.damping = lambda;
    OneLayer resumed(comm::make_self(), options);
    Loader loader(own, 0);
    resumed.preconditioner.visit_state(loader);
    // One more try, and the same error where nothing has changed.
    EXPECT_EQ(resumed.step(false).updated, lambda == 1e-2);
    if (lambda == 1e-60) {
      EXPECT_THROW((void)resumed.step(false), NumericError);
    }
  }
  EXPECT_THROW((void)layer.step(false), NumericError) << "saving has changed the count";
}

TEST(AfterFailedInverse, EkfacScalesThatWereRefusedGetOneMoreTryToo) {
  std::vector<SavedState> states(2);
  comm::run_ranks(2, [&](auto comm) {
    kfac::CurvatureOptions options = natural_gradient();
    options.inverse.max_failed_refreshes = 2;
    options.inverse.method = kfac::InverseMethod::ekfac;
    options.distribution.grad_worker_fraction = 1;
    options.refresh.inverse_interval = 100;
    const auto train = [](kfac::Preconditioner& preconditioner, LayerId fc, bool fits) {
      // (x dy)^2 is 2.9e38 on each rank, so that the sum of the scales is not finite.
      const float x = fits ? 1.0F : 1e9F, dy = fits ? 0.5F : 1.7e10F;
      float g = 1;
      const std::vector<kfac::LayerGrad> grads{{fc, view_of(&g, {1, 1}), {}}};
      preconditioner.record_input(fc, view_of(&x, {1, 1}), Stream::cpu(), {1, 1});
      preconditioner.record_grad_output(fc, view_of(&dy, {1, 1}), Stream::cpu(), {1, 1});
      return preconditioner.step(grads).updated;
    };
    const LinearSpec spec{.in = 1, .out = 1, .bias = false};
    kfac::Preconditioner first(comm, options), resumed(comm, options);
    const LayerId fc = first.add_layer("fc", spec);
    EXPECT_TRUE(train(first, fc, true));
    for (int step = 0; step < 3; ++step) EXPECT_TRUE(train(first, fc, false)) << step;
    EXPECT_THROW((void)train(first, fc, false), NumericError);
    Saver saver;
    first.visit_state(saver);
    states[static_cast<std::size_t>(comm->rank())] = saver.state;
    comm->barrier("saved");
    (void)resumed.add_layer("fc", spec);
    Loader loader(states, comm->rank());
    resumed.visit_state(loader);
    EXPECT_TRUE(train(resumed, fc, false));
    EXPECT_THROW((void)train(resumed, fc, false), NumericError);
  });
}

TEST(WithoutInverse, GradientsKeepBitsThatTheComputingTypeCannotHold) {
  comm::run_ranks(2, [](auto comm) {
    kfac::Preconditioner preconditioner(comm, natural_gradient());  // f32
    const LinearSpec spec{.in = 1, .out = 1, .bias = false};
    const auto good = preconditioner.add_layer("good", spec);
    const auto bad = preconditioner.add_layer("bad", spec);
    // x^2 is 2.9e38 on each rank, and the sum over both is not finite.
    for (const auto& [fc, x] : {std::pair{good, 1.0F}, {bad, 1.7e19F}}) {
      const float dy = 0.5F;
      preconditioner.record_input(fc, view_of(&x, {1, 1}), Stream::cpu(), {1, 1});
      preconditioner.record_grad_output(fc, view_of(&dy, {1, 1}), Stream::cpu(), {1, 1});
    }
    double of_good = 0.1, of_bad = 0.1;
    const std::vector<kfac::LayerGrad> grads{{good, view_of(&of_good, {1, 1}), {}},
                                             {bad, view_of(&of_bad, {1, 1}), {}}};
    const kfac::StepReport report = preconditioner.step(grads);
    EXPECT_TRUE(report.updated);
    EXPECT_EQ(report.without_inverse, (std::vector<std::string>{"bad"}));
    EXPECT_EQ(of_bad, 0.1);
    EXPECT_NE(of_good, 0.1);
  });
}

TEST(AfterFailedInverse, TheOptimizerGoesOnToo) {
  for (const int ranks : {1, 3})
    comm::run_ranks(ranks, [](auto comm) {
      optim::KfacOptions options{.curvature = hopeless()};
      options.curvature.inverse.max_failed_refreshes = 0;
      const auto optimizer = optim::make_kfac(comm, options);
      std::vector<double> w{1, 1}, g{1, 1}, x{1, 1}, dy{1};
      const auto fc =
          optimizer->add_layer("fc", LinearSpec{.in = 2, .out = 1, .bias = false},
                               {view_of(w.data(), {2}), {}, view_of(g.data(), {2}), {}});
      optimizer->prepare();
      const auto step = [&] {
        optimizer->record_input(fc, view_of(x.data(), {1, 2}), Stream::cpu(), {});
        optimizer->record_grad_output(fc, view_of(dy.data(), {1, 1}), Stream::cpu(), {});
        optimizer->grads_ready(fc, Stream::cpu(), {});
        return optimizer->step({.lr = 0.25, .flags = {}}, Stream::cpu());
      };
      EXPECT_FALSE(step().updated);
      for (int i = 0; i < 2; ++i) EXPECT_THROW((void)step(), NumericError);
      EXPECT_EQ(w, (std::vector<double>{1, 1}));
      optimizer->set_curvature({.damping = 1e-2});
      EXPECT_TRUE(step().updated);
      EXPECT_NE(w, (std::vector<double>{1, 1}));
    });
}

}  // namespace
}  // namespace dkfac::testing
