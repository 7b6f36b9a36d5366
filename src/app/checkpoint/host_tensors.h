#pragma once

#include <vector>

#include "dkfac/core/context.h"
#include "dkfac/core/state.h"
#include "dkfac/core/tensor.h"
#include "dkfac/nn/model.h"

/// State that lies on a device, as files want it.
namespace dkfac::app {

/// The parameters and buffers of a model in host memory: the model's own, or on a device a copy in
/// pinned memory. Valid as long as the model.
class HostTensors {
 public:
  /// The host waits for a copy.
  HostTensors(Context& ctx, nn::Model& model);
  [[nodiscard]] const std::vector<nn::NamedTensor>& all() const { return all_; }
  /// Puts the values back where they came from, for work of ctx that follows.
  void put_back();

 private:
  Context& ctx_;
  nn::Model& model_;
  Tensor parameters_, buffers_;  ///< Not set on the host.
  std::vector<nn::NamedTensor> all_;
};

/// Shows a visitor host memory only: tensors on a device are copied there and, after the visit,
/// back, which the host waits for. A copy lives as long as the visit of its tensor.
class HostView final : public StateVisitor {
 public:
  HostView(Context& ctx, StateVisitor& inner) : ctx_(ctx), inner_(inner) {}
  void tensor(const std::string& name, StateKind kind, TensorView view) override;
  void integer(const std::string& name, StateKind kind, std::int64_t& value) override {
    inner_.integer(name, kind, value);
  }
  void real(const std::string& name, StateKind kind, double& value) override {
    inner_.real(name, kind, value);
  }

 private:
  Context& ctx_;
  StateVisitor& inner_;
};

}  // namespace dkfac::app
