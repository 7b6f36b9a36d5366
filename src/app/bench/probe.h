#pragma once

#include <functional>
#include <string>
#include <vector>

#include "dkfac/optim/optimizer.h"

#include "app/bench/bench.h"

namespace dkfac::app::bench {

/// What a layer with a factor pair gives to an optimizer in one pass: views that are valid during
/// the call.
struct Recorded {
  const std::string& name;
  const LayerSpec& spec;
  ConstTensorView data;  ///< Its input, or the gradient at its output.
};

/// An optimizer that updates nothing and passes on what the layers record.
class Probe final : public optim::Optimizer {
 public:
  using Hear = std::function<void(const Recorded&)>;
  struct Entry {
    std::string name;
    LayerSpec spec;
  };
  Probe(Hear input, Hear grad_output)
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
  void tell(const Hear& hear, LayerId layer, ConstTensorView data) const;

  std::vector<Entry> layers_;
  Hear input_, grad_output_;
};

/// One forward and one backward pass of the command's model over one batch, told to the hearers.
/// Gradients are those of the mean loss of the batch.
void run_probe(const BenchCommand& command, Context& ctx, Probe::Hear input,
               Probe::Hear grad_output);

}  // namespace dkfac::app::bench
