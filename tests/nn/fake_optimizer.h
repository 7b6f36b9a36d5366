#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/tensor.h"
#include "dkfac/kfac/optimizer.h"

namespace dkfac::testing {

/// Takes part in nothing and writes down what an attachment feeds it.
class FakeOptimizer final : public kfac::Optimizer {
 public:
  [[nodiscard]] std::string_view name() const override { return "fake"; }
  [[nodiscard]] kfac::LayerId add_layer(std::string name, kfac::LayerSpec spec,
                                        kfac::LayerParams params) override {
    names.push_back(name + ": " + kfac::describe(spec));
    EXPECT_EQ(params.weight.numel(), kfac::weight_numel(spec));
    EXPECT_EQ(params.weight_grad.numel(), kfac::weight_numel(spec));
    EXPECT_EQ(params.bias.numel(), kfac::bias_numel(spec));
    EXPECT_EQ(params.bias_grad.numel(), kfac::bias_numel(spec));
    specs.push_back(std::move(spec));
    return static_cast<kfac::LayerId>(names.size() - 1);
  }
  void prepare() override {}
  [[nodiscard]] bool wants_statistics() const override { return wants; }
  [[nodiscard]] bool wants_input(kfac::LayerId id) const override {
    return wants && !unwanted_inputs.contains(static_cast<int>(id));
  }
  [[nodiscard]] bool wants_grad_output(kfac::LayerId id) const override {
    return wants && !unwanted_outputs.contains(static_cast<int>(id));
  }
  void record_input(kfac::LayerId id, ConstTensorView x, Stream, kfac::RecordScale scale) override {
    note("input", id, scale);
    dtypes.insert(x.dtype());
  }
  void record_grad_output(kfac::LayerId id, ConstTensorView dy, Stream,
                          kfac::RecordScale scale) override {
    note("grad_output", id, scale);
    dtypes.insert(dy.dtype());
  }
  void record_batch_norm(kfac::LayerId id, ConstTensorView x, ConstTensorView, ConstTensorView,
                         ConstTensorView dy, Stream, kfac::RecordScale scale) override {
    note("batch_norm", id, scale);
    dtypes.insert(x.dtype());
    dtypes.insert(dy.dtype());
  }
  void grads_ready(kfac::LayerId id, Stream, kfac::RecordScale scale) override {
    note("ready", id, scale);
  }
  kfac::StepReport step(const kfac::StepArgs&, Stream) override { return {}; }
  [[nodiscard]] std::string describe() const override { return {}; }

  bool wants = true;
  std::set<int> unwanted_inputs, unwanted_outputs;
  std::vector<std::string> names, calls;
  std::vector<kfac::LayerSpec> specs;
  std::set<DType> dtypes;  ///< Of what was recorded.

 private:
  void note(const char* what, kfac::LayerId id, const kfac::RecordScale& scale) {
    EXPECT_EQ(scale.global_batch, 40);
    calls.push_back(detail::concat(what, " ", static_cast<int>(id)));
  }
};

}  // namespace dkfac::testing
