// BatchNorm groups that extend over ranks.

#include <gtest/gtest.h>

#include "dkfac/comm/in_process.h"

#include "nn/distributed_training.h"

namespace dkfac::testing {
namespace {

using SharedComm = std::shared_ptr<comm::Communicator>;

/// Trains with `groups` over all ranks and expects what one rank makes of the same groups.
template <class Train>
void expect_one_rank(std::int64_t groups, std::initializer_list<int> ranks, const Train& train) {
  const Passes passes{.groups = groups};
  const Trained expected = train(comm::make_self(), passes);
  for (const int size : ranks) {
    SCOPED_TRACE(::testing::Message() << groups << " groups on " << size << " ranks");
    comm::run_ranks(size, [&](const SharedComm& comm) {
      expect_same_training(*comm, train(comm, passes), expected);
    });
  }
}

Trained with_kfac(const SharedComm& comm, const Passes& passes) {
  return train_kfac(comm, true, passes);
}

TEST(SharedBatchNorm, TrainsWithKfacAsOneRankDoes) {
  expect_one_rank(1, {2, 3, 4}, with_kfac);
  expect_one_rank(2, {4}, with_kfac);
  const Trained one = with_kfac(comm::make_self(), {.groups = 1});
  EXPECT_LT(one.last_loss, 0.8 * one.first_loss);
}

TEST(SharedBatchNorm, TrainsWithEveryFisherOfBatchNormAsOneRankDoes) {
  for (const auto fisher : {kfac::NormFisher::diagonal, kfac::NormFisher::full})
    expect_one_rank(1, {3}, [&](const SharedComm& comm, const Passes& passes) {
      optim::KfacOptions options = kfac_options(false);
      options.curvature.statistics.norm_fisher = fisher;
      return train(comm, *optim::make_kfac(comm, options), passes);
    });
}

TEST(SharedBatchNorm, TrainsWithSgdAsOneRankDoes) {
  expect_one_rank(1, {2, 3, 4}, [](const SharedComm& comm, const Passes& passes) {
    return train(comm, *optim::make_sgd(comm, {}), passes);
  });
}

/// Control: groups of one rank each give other weights, far beyond the tolerance.
TEST(SharedBatchNorm, DiffersFromGroupsOfOneRank) {
  const Trained shared = with_kfac(comm::make_self(), {.groups = 1});
  comm::run_ranks(2, [&](const SharedComm& comm) {
    EXPECT_FALSE(near(with_kfac(comm, {.groups = 2}).weights, shared.weights, 1e-3));
  });
}

/// Forward and backward pass of one layer over [8,3,3,2] with means of 1e6, in shares.
struct LayerPass {
  std::vector<double> y, dx, grads, running;
};
LayerPass pass_of(const SharedComm& comm, nn::Activation activation) {
  Context ctx;
  Standalone<nn::BatchNorm2d> norm(ctx, DType::f64, 2,
                                   nn::BatchNormOptions{.activation = activation});
  norm.layer.set_ranks(comm);
  const std::int64_t share = 8 / comm->size(), first = comm->rank() * share;
  Tensor x = random_tensor(ctx, Shape{8, 3, 3, 2}, DType::f64, 1);
  for (std::int64_t i = 0; i < x.numel(); ++i) x.data<double>()[i] += i % 2 == 0 ? 1e6 : -3;
  const Tensor dy = random_tensor(ctx, Shape{8, 3, 3, 2}, DType::f64, 2);
  LayerPass pass;
  pass.y = values(ctx, norm->forward(ctx, x.view().slice(0, first, share), nn::Mode::train));
  pass.dx =
      values(ctx, norm->backward(ctx, dy.view().slice(0, first, share), nn::InputGrad::needed));
  for (std::size_t i : {0u, 1u})
    for (const double g : values(ctx, norm.grad(i))) pass.grads.push_back(g);
  for (const nn::Buffer& b : norm->buffers())
    for (const double r : values(ctx, b.value)) pass.running.push_back(r);
  return pass;
}

/// This rank's part of a result over all samples.
std::vector<double> part_of(const std::vector<double>& all, const comm::Communicator& comm) {
  const auto size = static_cast<std::ptrdiff_t>(all.size()) / comm.size();
  return {all.begin() + comm.rank() * size, all.begin() + (comm.rank() + 1) * size};
}

TEST(SharedBatchNorm, PassesAsOneLayerOverTheWholeBatch) {
  for (const auto kind : {nn::ActivationKind::none, nn::ActivationKind::relu}) {
    const LayerPass one = pass_of(comm::make_self(), {.kind = kind});
    for (const int size : {2, 4}) {
      comm::run_ranks(size, [&](const SharedComm& comm) {
        LayerPass mine = pass_of(comm, {.kind = kind});
        // Means of 1e6: x - mean has lost 20 of 52 bits in any order; c*n*eps with c*n = 1e6.
        constexpr double kTolerance = 2e-10;
        EXPECT_TRUE(near(mine.y, part_of(one.y, *comm), kTolerance));
        EXPECT_TRUE(near(mine.dx, part_of(one.dx, *comm), kTolerance));
        EXPECT_TRUE(near(mine.running, one.running, kTolerance));
        EXPECT_EQ(mine.running, of_rank_0(*comm, mine.running));
        // Parameter gradients are those of this rank's samples.
        comm->all_reduce(view_of(mine.grads.data(), {std::ssize(mine.grads)}), comm::ReduceOp::sum,
                         Stream::cpu(), "gradients");
        EXPECT_TRUE(near(mine.grads, one.grads, kTolerance));
      });
    }
  }
}

TEST(SharedBatchNorm, NeedsOnlyTwoValuesOverAllRanks) {
  comm::run_ranks(2, [](const SharedComm& comm) {
    Context ctx;
    Standalone<nn::BatchNorm2d> norm(ctx, DType::f64, 3);
    const Tensor x =
        random_tensor(ctx, Shape{1, 3}, DType::f64, static_cast<std::uint64_t>(1 + comm->rank()));
    EXPECT_THROW((void)norm->forward(ctx, x, nn::Mode::train), InvalidArgument);
    norm.layer.set_ranks(comm);
    EXPECT_NO_THROW((void)norm->forward(ctx, x, nn::Mode::train));
  });
}

TEST(SharedBatchNorm, RefusesSeveralGroupsAndBatchesOfDifferentSizes) {
  comm::run_ranks(2, [](const SharedComm& comm) {
    nn::BatchNorm2d two(3, {.groups = 2});
    EXPECT_THROW(two.set_ranks(comm), InvalidArgument);
    EXPECT_NO_THROW(two.set_ranks(comm::make_self()));
    Context ctx;
    Standalone<nn::BatchNorm2d> norm(ctx, DType::f64, 3);
    norm.layer.set_ranks(comm);
    for (const std::int64_t samples : {4 + comm->rank(), 4 * comm->rank()}) {
      const Tensor x = random_tensor(ctx, Shape{samples, 3}, DType::f64, 1);
      const std::string message = message_of([&] { (void)norm->forward(ctx, x, nn::Mode::train); });
      EXPECT_TRUE(contains(message, "batches of one size")) << message;
    }
  });
}

}  // namespace
}  // namespace dkfac::testing
