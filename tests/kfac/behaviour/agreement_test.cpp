#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "support/natural_gradient.h"
#include "support/plain_training.h"
#include "support/saved_state.h"

// Everything that must be equal on all ranks is checked, and a difference is an error on all ranks
// that names it.
namespace dkfac::testing {
namespace {

kfac::CurvatureOptions agreed_curvature() {
  kfac::CurvatureOptions options = natural_gradient();
  options.damping = 1e-2;
  options.dtype = DType::f64;
  return options;
}

/// body(comm) throws E on every rank, with `text` in its message.
template <class E>
void expect_on_all_ranks(int ranks, const std::string& text,
                         const std::function<void(std::shared_ptr<comm::Communicator>)>& body,
                         comm::Options options = {}) {
  comm::run_ranks(
      ranks,
      [&](std::shared_ptr<comm::Communicator> comm) {
        try {
          body(comm);
          ADD_FAILURE() << "no error on rank " << comm->rank();
        } catch (const E& error) {
          EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
        }
      },
      options);
}

TEST(Agreement, OptimizersWithDifferentLayersAreAnErrorOnAllRanks) {
  expect_on_all_ranks<InvalidArgument>(3, "rank", [](auto comm) {
    const auto optimizer = optim::make_sgd(comm, {});
    std::vector<double> w(8), g(8);
    const std::int64_t n = comm->rank() == 2 ? 8 : 6;
    (void)optimizer->add_layer("a", PlainSpec{.weight = n},
                               {view_of(w.data(), {n}), {}, view_of(g.data(), {n}), {}});
    optimizer->prepare();
  });
}

TEST(Agreement, OptimizersOfDifferentKindAreAnErrorOnAllRanks) {
  expect_on_all_ranks<InvalidArgument>(2, "rank 1", [](auto comm) {
    const auto optimizer =
        comm->rank() == 0 ? optim::make_sgd(comm, {}) : optim::make_lars(comm, {});
    optimizer->prepare();
  });
}

TEST(Agreement, OptionsThatDifferInTheLastDigitAreAnErrorOnAllRanks) {
  expect_on_all_ranks<InvalidArgument>(2, "rank 1", [](auto comm) {
    optim::KfacOptions options{.curvature = agreed_curvature()};
    if (comm->rank() == 1) options.momentum = std::nextafter(options.momentum, 1.0);
    optim::make_kfac(comm, options)->prepare();
  });
}

TEST(Agreement, RulesThatSplitTheDampingDifferentlyAreAnErrorOnAllRanks) {
  expect_on_all_ranks<InvalidArgument>(2, "rank 1", [](auto comm) {
    kfac::CurvatureOptions options = agreed_curvature();
    if (comm->rank() == 1) options.damping_split = kfac::DampingSplit::constant;
    optim::make_kfac(comm, {.curvature = options})->prepare();
  });
}

TEST(Agreement, PreconditionersWithDifferentLayersAreAnErrorOnAllRanks) {
  expect_on_all_ranks<InvalidArgument>(2, "rank 1", [](auto comm) {
    kfac::Preconditioner preconditioner(comm, agreed_curvature());
    (void)preconditioner.add_layer("fc", LinearSpec{.in = 2, .out = 2, .bias = comm->rank() == 0});
    preconditioner.prepare();
  });
}

TEST(Agreement, LearningRatesThatDifferAreAnErrorOnAllRanksBeforeAnythingMoves) {
  expect_on_all_ranks<CommError>(3, "learning rates", [](auto comm) {
    const auto optimizer = optim::make_sgd(comm, {});
    double w = 1, g = 1;
    const auto id = optimizer->add_layer("a", PlainSpec{.weight = 1},
                                         {view_of(&w, {1}), {}, view_of(&g, {1}), {}});
    optimizer->prepare();
    optimizer->grads_ready(id, Stream::cpu(), {});
    try {
      (void)optimizer->step({.lr = comm->rank() == 1 ? 0.1 : 0.2, .flags = {}}, Stream::cpu());
    } catch (...) {
      EXPECT_EQ(w, 1);
      throw;
    }
  });
}

/// Two steps, and one more after rank 1 has gone back to the state after the first.
template <class Made, class Step>
void go_back_alone(const comm::Communicator& comm, Made& made, const Step& step) {
  step();
  Saver saver;
  made.visit_state(saver);
  step();
  const std::vector<SavedState> saved{saver.state};
  Loader loader(saved, 0);
  if (comm.rank() == 1) made.visit_state(loader);
  step();
}

TEST(Agreement, AStateThatSomeRanksAloneLoadIsAnErrorOnAllRanks) {
  expect_on_all_ranks<CommError>(2, "at different steps", [](auto comm) {
    const auto optimizer = optim::make_sgd(comm, {});
    double w = 1, g = 1;
    const auto id = optimizer->add_layer("a", PlainSpec{.weight = 1},
                                         {view_of(&w, {1}), {}, view_of(&g, {1}), {}});
    optimizer->prepare();
    go_back_alone(*comm, *optimizer, [&] {
      optimizer->grads_ready(id, Stream::cpu(), {});
      (void)optimizer->step({.lr = 0.1, .flags = {}}, Stream::cpu());
    });
  });
  expect_on_all_ranks<CommError>(2, "at different steps", [](auto comm) {
    kfac::Preconditioner preconditioner(comm, agreed_curvature());
    const auto fc = preconditioner.add_layer("fc", LinearSpec{.in = 1, .out = 1, .bias = false});
    preconditioner.prepare();
    go_back_alone(*comm, preconditioner, [&] {
      double x = 1, g = 1;
      preconditioner.record_input(fc, view_of(&x, {1, 1}));
      preconditioner.record_grad_output(fc, view_of(&x, {1, 1}));
      const std::vector<kfac::LayerGrad> grads{{fc, view_of(&g, {1}), {}}};
      (void)preconditioner.step(grads);
    });
  });
}

TEST(Agreement, DampingsThatDifferAreAnErrorOnAllRanks) {
  expect_on_all_ranks<CommError>(2, "dampings", [](auto comm) {
    kfac::Preconditioner preconditioner(comm, agreed_curvature());
    const auto fc = preconditioner.add_layer("fc", LinearSpec{.in = 1, .out = 1, .bias = false});
    double x = 1, g = 1;
    preconditioner.record_input(fc, view_of(&x, {1, 1}));
    preconditioner.record_grad_output(fc, view_of(&x, {1, 1}));
    if (comm->rank() == 1) preconditioner.set_damping(0.5);
    const std::vector<kfac::LayerGrad> grads{{fc, view_of(&g, {1}), {}}};
    (void)preconditioner.step(grads);
  });
}

TEST(Agreement, LearningRatesOfAClipThatDifferAreAnErrorOnAllRanks) {
  expect_on_all_ranks<CommError>(2, "learning rates", [](auto comm) {
    kfac::CurvatureOptions options = agreed_curvature();
    options.kl_clip = 1e-3;
    kfac::Preconditioner preconditioner(comm, options);
    const auto fc = preconditioner.add_layer("fc", LinearSpec{.in = 1, .out = 1, .bias = false});
    double x = 1, g = 1;
    preconditioner.record_input(fc, view_of(&x, {1, 1}));
    preconditioner.record_grad_output(fc, view_of(&x, {1, 1}));
    const std::vector<kfac::LayerGrad> grads{{fc, view_of(&g, {1}), {}}};
    const double lr = comm->rank() == 1 ? 0.2 : 0.1;
    (void)preconditioner.step(grads, Stream::cpu(), {.lr = lr, .flags = {}});
  });
}

TEST(Agreement, RatesOfALayerUnderAClipThatDifferAreAnErrorOnAllRanks) {
  expect_on_all_ranks<CommError>(2, "learning rates", [](auto comm) {
    kfac::CurvatureOptions options = agreed_curvature();
    options.kl_clip = 1e-3;
    kfac::Preconditioner preconditioner(comm, options);
    const auto fc = preconditioner.add_layer("fc", LinearSpec{.in = 1, .out = 1, .bias = false});
    if (comm->rank() == 1) preconditioner.set_rates(fc, 0.5, 1);
    double x = 1, g = 1;
    preconditioner.record_input(fc, view_of(&x, {1, 1}));
    preconditioner.record_grad_output(fc, view_of(&x, {1, 1}));
    const std::vector<kfac::LayerGrad> grads{{fc, view_of(&g, {1}), {}}};
    (void)preconditioner.step(grads, Stream::cpu(), {.lr = 0.1, .flags = {}});
  });
}

/// A step of a preconditioner of one layer after a change of settings.
void step_with(std::shared_ptr<comm::Communicator> comm, const kfac::CurvatureSettings& settings) {
  kfac::Preconditioner preconditioner(std::move(comm), agreed_curvature());
  const auto fc = preconditioner.add_layer("fc", LinearSpec{.in = 1, .out = 1, .bias = false});
  preconditioner.prepare();
  preconditioner.set_curvature(settings);
  double x = 1, g = 1;
  for (int part = 0; part < settings.micro_batches.value_or(1); ++part) {
    preconditioner.record_input(fc, view_of(&x, {1, 1}));
    preconditioner.record_grad_output(fc, view_of(&x, {1, 1}));
  }
  const std::vector<kfac::LayerGrad> grads{{fc, view_of(&g, {1}), {}}};
  (void)preconditioner.step(grads);
}

TEST(Agreement, IntervalsThatDifferAreAnErrorOnAllRanks) {
  expect_on_all_ranks<CommError>(2, "dampings", [](auto comm) {
    const int interval = comm->rank() == 1 ? 3 : 2;
    step_with(comm, {.damping = 1e-2, .statistics_interval = 1, .inverse_interval = interval});
  });
  expect_on_all_ranks<CommError>(2, "intervals", [](auto comm) {
    const int interval = comm->rank() == 1 ? 3 : 2;
    step_with(comm, {.statistics_interval = interval, .inverse_interval = 6});
  });
}

TEST(Agreement, NumbersOfMicroBatchesThatDifferAreAnErrorOnAllRanks) {
  expect_on_all_ranks<CommError>(2, "micro-batches", [](auto comm) {
    step_with(comm, {.micro_batches = comm->rank() == 1 ? 2 : 1});
  });
}

TEST(Agreement, WeightsOfStatisticsThatDifferAreAnErrorOnAllRanks) {
  expect_on_all_ranks<CommError>(2, "weights of statistics", [](auto comm) {
    step_with(comm, {.new_weight = comm->rank() == 1 ? 0.5 : 0.25});
  });
}

TEST(Agreement, AMomentumOfZeroBesideThatOfTheOptionsIsAnErrorOnAllRanks) {
  expect_on_all_ranks<CommError>(2, "momenta", [](auto comm) {
    const auto optimizer = optim::make_sgd(comm, {});
    double w = 1, g = 1;
    const auto id = optimizer->add_layer("a", PlainSpec{.weight = 1},
                                         {view_of(&w, {1}), {}, view_of(&g, {1}), {}});
    optimizer->prepare();
    optimizer->grads_ready(id, Stream::cpu(), {});
    StepArgs args{.lr = 0.1};
    if (comm->rank() == 1) args.momentum = 0.0;
    (void)optimizer->step(args, Stream::cpu());
  });
}

/// Passes everything on except barriers, which it only counts: a rank can break the contract
/// without the inner communicator noticing, as ranks of a network with small messages can.
class Lenient final : public comm::Communicator {
 public:
  explicit Lenient(std::shared_ptr<comm::Communicator> inner)
      : Communicator(inner->rank(), inner->size(), inner->options()), inner_(std::move(inner)) {}
  [[nodiscard]] std::string_view backend() const override { return "lenient"; }
  bool progress() override { return inner_->progress(); }

 protected:
  void do_all_reduce(TensorView x, comm::ReduceOp op, Stream s, comm::CallInfo info) override {
    inner_->all_reduce(x, op, s, info.name);
  }
  void do_reduce_scatter_v(TensorView x, std::span<const std::int64_t> counts, TensorView out,
                           Stream s, comm::CallInfo info) override {
    inner_->reduce_scatter_v(x, counts, out, s, info.name);
  }
  void do_all_gather_v(ConstTensorView x, std::span<const std::int64_t> counts, TensorView out,
                       Stream s, comm::CallInfo info) override {
    inner_->all_gather_v(x, counts, out, s, info.name);
  }
  void do_broadcast(TensorView x, int root, Stream s, comm::CallInfo info) override {
    inner_->broadcast(x, root, s, info.name);
  }
  void do_exchange(ConstTensorView x, std::span<const comm::Route> routes, TensorView out, Stream s,
                   comm::CallInfo info) override {
    inner_->exchange(x, routes, out, s, info.name);
  }
  void do_barrier(comm::CallInfo) override {}
  std::shared_ptr<comm::Communicator> do_split(int color, int key, comm::CallInfo) override {
    return inner_->split(color, key);
  }
  void do_abort(std::string_view reason) noexcept override { inner_->abort(reason); }

 private:
  std::shared_ptr<comm::Communicator> inner_;
};

TEST(Agreement, AnExtraCollectiveIsFoundOnAllRanksByTheHash) {
  for (const bool preconditioner : {false, true})
    expect_on_all_ranks<CommError>(3, "different collectives", [&](auto inner) {
      const auto comm = std::make_shared<Lenient>(inner);
      const auto break_contract = [&](const kfac::StepReport& report) {
        if (report.step == 2 && comm->rank() == 1) comm->barrier("one too many");
        EXPECT_LE(report.step, 2);
      };
      // Each step's check of the weights would otherwise notice first or not at all.
      if (preconditioner)
        (void)train_preconditioned<double>(comm, agreed_curvature(), {.steps = 4}, break_contract);
      else
        (void)train<double>(
            comm, [](auto c) { return optim::make_kfac(c, {.curvature = agreed_curvature()}); },
            {.steps = 4}, break_contract);
    });
}

TEST(Agreement, ASkippedCollectiveIsNamedOnAllRanks) {
  comm::Options options;
  options.check = comm::Check::full;
  options.timeout_s = 10;
  expect_on_all_ranks<CommError>(
      2, "gradients",
      [](auto comm) {
        const auto optimizer = optim::make_sgd(comm, {});
        double w = 1, g = 1;
        const auto id = optimizer->add_layer("a", PlainSpec{.weight = 1},
                                             {view_of(&w, {1}), {}, view_of(&g, {1}), {}});
        optimizer->prepare();
        if (comm->rank() == 1) {  // as if rank 1 had left the training loop
          comm->barrier("end of training");
        } else {
          optimizer->grads_ready(id, Stream::cpu(), {});
          (void)optimizer->step({.lr = 0.1, .flags = {}}, Stream::cpu());
        }
      },
      options);
}

TEST(Agreement, ARankThatThrowsReleasesTheOthers) {
  EXPECT_THROW(comm::run_ranks(3,
                               [](auto comm) {
                                 const MakeOptimizer make = [](auto c) {
                                   return optim::make_kfac(c, {.curvature = agreed_curvature()});
                                 };
                                 TrainSettings settings{.steps = 3};
                                 settings.lr = [&](int step) {
                                   return step == 1 && comm->rank() == 2 ? -1.0 : 0.05;
                                 };
                                 (void)train<double>(comm, make, settings);
                               }),
               InvalidArgument);
}

}  // namespace
}  // namespace dkfac::testing
