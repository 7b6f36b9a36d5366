#pragma once

#include <functional>
#include <string>
#include <vector>

#include "dkfac/optim/optimizer.h"

#include "app/bench/bench.h"

namespace dkfac::app::bench {

/// Data that a layer with a factor pair records in one pass; the views are valid during the call.
struct Recorded {
  const std::string& name;
  const LayerSpec& spec;
  ConstTensorView data;  ///< Input of the layer, or gradient of its output.
};

/// An optimizer that updates nothing and forwards the recorded data of layers to callbacks.
class Probe final : public optim::Optimizer {
 public:
  using Callback = std::function<void(const Recorded&)>;
  struct Entry {
    std::string name;
    LayerSpec spec;
  };
  Probe(Callback input, Callback grad_output)
      : input_(std::move(input)), grad_output_(std::move(grad_output)) {}

  [[nodiscard]] std::string_view name() const override { return "probe"; }
  [[nodiscard]] LayerId add_layer(std::string name, LayerSpec spec,
                                  optim::LayerParams params) override;
  void prepare() override {}
  [[nodiscard]] bool wants_statistics() const override { return true; }
  void record_input(LayerId layer, ConstTensorView input, Stream stream,
                    RecordScale scale) override;
  void record_grad_output(LayerId layer, ConstTensorView grad_output, Stream stream,
                          RecordScale scale) override;
  void grads_ready(LayerId, Stream, RecordScale) override {}
  kfac::StepReport step(const StepArgs&, Stream) override { return {}; }
  [[nodiscard]] std::string describe() const override { return {}; }
  [[nodiscard]] const std::vector<Entry>& layers() const { return layers_; }

 private:
  void notify(const Callback& callback, LayerId layer, ConstTensorView data) const;

  std::vector<Entry> layers_;
  Callback input_, grad_output_;
};

/// Runs one forward and one backward pass of the command's model over one batch and calls the
/// callbacks. Gradients are those of the mean loss of the batch.
void run_probe(const BenchCommand& command, Context& ctx, Probe::Callback input,
               Probe::Callback grad_output);

}  // namespace dkfac::app::bench
