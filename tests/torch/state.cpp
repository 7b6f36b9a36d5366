// Kfac::visit_state, going back to an earlier state in the same process; names of Options::skip.
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "support.hpp"

namespace {

/// The values of a state in the order of the visit.
struct Values {
  std::vector<std::string> all;
  std::size_t next = 0;
  bool loads = false;

  int move(void* data, std::size_t bytes) {
    if (!loads) {
      all.emplace_back(static_cast<const char*>(data), bytes);
    } else {
      if (next == all.size() || all[next].size() != bytes) return 1;
      std::memcpy(data, all[next++].data(), bytes);
    }
    return 0;
  }
  dkfac_state_visitor visitor() {
    dkfac_state_visitor v{};
    v.struct_size = sizeof v;
    v.user = this;
    v.tensor = [](void* self, const char*, std::int32_t, const dkfac_tensor* x) {
      std::int64_t bytes = x->dtype == DKFAC_F64 ? 8 : 4;
      for (int i = 0; i < x->ndim; ++i) bytes *= x->shape[i];
      return static_cast<Values*>(self)->move(x->data, static_cast<std::size_t>(bytes));
    };
    v.integer = [](void* self, const char*, std::int32_t, std::int64_t* x) {
      return static_cast<Values*>(self)->move(x, sizeof *x);
    };
    v.real = [](void* self, const char*, std::int32_t, double* x) {
      return static_cast<Values*>(self)->move(x, sizeof *x);
    };
    return v;
  }
};

TEST(LibTorch, GoesBackToAnEarlierState) {
  libtorch::Options o = options();
  o.statistics_interval = o.inverse_interval = 3;
  Model model(
      torch::nn::Sequential(torch::nn::Linear(4, 5), torch::nn::Tanh(), torch::nn::Linear(5, 2)),
      o);
  const torch::Tensor x = rand({8, 4});
  const auto weights = [&] {
    std::vector<torch::Tensor> all;
    for (const auto& p : model.net->parameters()) all.push_back(p.detach().clone());
    return all;
  };
  const auto train = [&](int steps) {
    for (int i = 0; i < steps; ++i) {
      model.backward(x);
      EXPECT_TRUE(model.kfac->step()) << i;
    }
  };
  train(3);  // Statistics are due in the next step.
  Values values;
  model.kfac->visit_state(values.visitor());
  const auto before = weights();
  train(5);  // And not in the one after these.
  const auto expected = weights();
  EXPECT_GT(distance(before, expected), 1e-6);
  values.loads = true;
  model.kfac->visit_state(values.visitor());
  EXPECT_EQ(values.next, values.all.size());
  {
    const torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < before.size(); ++i) model.net->parameters()[i].copy_(before[i]);
  }
  train(5);
  EXPECT_EQ(distance(weights(), expected), 0);
}

TEST(LibTorch, RefusesToSkipWhatIsNotThere) {
  libtorch::Options o = options();
  const auto make = [&] {
    return std::make_unique<Model>(
        torch::nn::Sequential(torch::nn::Linear(4, 5), torch::nn::Linear(5, 2)), o);
  };
  o.skip = {"0", "2"};
  refuse([&] { make(); }, "skip names '2', and the model has no such module");
  o.skip = {"0"};
  EXPECT_NE(make()->kfac->describe().find("in Options::skip"), std::string::npos);
}

}  // namespace
