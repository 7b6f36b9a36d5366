#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dkfac/comm/communicator.h"
#include "dkfac/core/context.h"
#include "dkfac/core/tensor.h"
#include "dkfac/kfac/preconditioner.h"

#include "probe/configuration.h"

namespace dkfac::probe {

/// Copies x, f64 or f32 on any device, to the host, which waits for it; and back, without waiting.
[[nodiscard]] std::vector<double> get(Context& ctx, ConstTensorView x);
void put(Context& ctx, const std::vector<double>& values, TensorView x);

/// A layer, and the shapes of what it sees of `n` samples.
struct ProbeLayer {
  std::string name;
  LayerSpec spec;
  Shape input, output;
};

struct Parameter {
  std::string name;  ///< "layer/weight/value"
  std::size_t layer = 0;
  Tensor value, gradient;
};

/// One rank of a run: an optimizer over layers of every kind, without a network between them.
/// Inputs, gradients of outputs and gradients of weights are drawn, the last ones pulled towards
/// the weights, so that the bits of every step follow from those of all steps before.
class Trainee {
 public:
  Trainee(const Configuration& configuration, std::shared_ptr<comm::Communicator> comm);

  /// Makes the data of a step. Waits of the host in here do not count.
  void make_data(const StepPlan& plan, int step);
  [[nodiscard]] kfac::StepReport step(const StepPlan& plan);
  void visit_state(StateVisitor& visitor);

  [[nodiscard]] Context& ctx() { return ctx_; }
  [[nodiscard]] const std::vector<ProbeLayer>& layers() const { return layers_; }
  [[nodiscard]] std::vector<Parameter>& parameters() { return parameters_; }

 private:
  struct Record {
    Tensor input, mean, inv_std, grad_output;
  };
  void add_parameters(std::size_t layer);
  Tensor make(Shape shape, DType dtype, const std::vector<double>& values);
  std::vector<Record> make_records(const StepPlan& plan, int step, int part, Fault fault);
  void make_gradient(const StepPlan& plan, int step, Parameter& parameter);
  void record(std::size_t layer, Record& record, bool input);
  void announce(std::size_t layer);
  void spoil(Tensor& x);
  /// f(the optimizer), of either kind.
  template <class F>
  void with_optimizer(F f) {
    if (optimizer_)
      f(*optimizer_);
    else
      f(*preconditioner_);
  }

  Configuration c_;
  std::shared_ptr<comm::Communicator> comm_;
  Context ctx_;  ///< Of the caller's stream.
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::optional<kfac::Preconditioner> preconditioner_;
  std::vector<ProbeLayer> layers_;
  std::vector<LayerId> ids_;
  std::vector<Parameter> parameters_;
  std::vector<kfac::LayerGrad> grads_;
  std::vector<std::vector<Record>> records_;  ///< By micro-batch and layer.
  RecordScale scale_;
  Tensor loss_;
  StepFlags flags_;
};

}  // namespace dkfac::probe
