#pragma once

#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "dkfac/core/tensor.h"
#include "dkfac/optim/optimizer.h"

namespace dkfac::testing {

/// An optimizer that only records what an attachment feeds it.
class FakeOptimizer final : public optim::Optimizer {
 public:
  [[nodiscard]] std::string_view name() const override { return "fake"; }
  [[nodiscard]] LayerId add_layer(std::string name, LayerSpec spec,
                                  optim::LayerParams params) override {
    names.push_back(name + ": " + dkfac::describe(spec));
    EXPECT_EQ(params.weight.numel(), dkfac::weight_numel(spec));
    EXPECT_EQ(params.weight_grad.numel(), dkfac::weight_numel(spec));
    EXPECT_EQ(params.bias.numel(), dkfac::bias_numel(spec));
    EXPECT_EQ(params.bias_grad.numel(), dkfac::bias_numel(spec));
    specs.push_back(std::move(spec));
    return static_cast<LayerId>(names.size() - 1);
  }
  void prepare() override {}
  [[nodiscard]] bool wants_statistics() const override { return wants; }
  [[nodiscard]] bool wants_input(LayerId id) const override {
    return wants && !unwanted_inputs.contains(static_cast<int>(id));
  }
  [[nodiscard]] bool wants_grad_output(LayerId id) const override {
    return wants && !unwanted_outputs.contains(static_cast<int>(id));
  }
  void record_input(LayerId id, ConstTensorView x, Stream, RecordScale scale) override {
    note("input", id, scale);
    dtypes.insert(x.dtype());
  }
  void record_grad_output(LayerId id, ConstTensorView dy, Stream, RecordScale scale) override {
    note("grad_output", id, scale);
    dtypes.insert(dy.dtype());
  }
  void record_normalization(LayerId id, ConstTensorView x, ConstTensorView, ConstTensorView,
                            ConstTensorView dy, Stream, RecordScale scale) override {
    note("batch_norm", id, scale);
    dtypes.insert(x.dtype());
    dtypes.insert(dy.dtype());
  }
  void grads_ready(LayerId id, Stream, RecordScale scale) override { note("ready", id, scale); }
  kfac::StepReport step(const StepArgs&, Stream) override { return {}; }
  [[nodiscard]] std::string describe() const override { return {}; }

  bool wants = true;
  std::set<int> unwanted_inputs, unwanted_outputs;
  std::vector<std::string> names, calls;
  std::vector<LayerSpec> specs;
  std::set<DType> dtypes;  ///< Of the recorded tensors.

 private:
  void note(const char* what, LayerId id, const RecordScale& scale) {
    EXPECT_EQ(scale.global_batch, 40);
    calls.push_back(detail::concat(what, " ", static_cast<int>(id)));
  }
};

}  // namespace dkfac::testing
