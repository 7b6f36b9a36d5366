#pragma once

#include <vector>

#include "dkfac/core/context.h"
#include "dkfac/core/state.h"
#include "dkfac/core/tensor.h"
#include "dkfac/nn/model.h"

/// Host copies of device state for reading and writing files.
namespace dkfac::app {

/// Parameters and buffers of a model in host memory: the model's own tensors, or a copy in pinned
/// memory if the model is on a device. Valid as long as the model.
class HostTensors {
 public:
  /// Synchronizes the host with the copy, if there is one.
  HostTensors(Context& ctx, nn::Model& model);
  [[nodiscard]] const std::vector<nn::NamedTensor>& all() const { return all_; }
  /// Copies the values back to the model, ordered before later work of ctx.
  void put_back();

 private:
  Context& ctx_;
  nn::Model& model_;
  Tensor parameters_, buffers_;  ///< Empty on the host.
  std::vector<nn::NamedTensor> all_;
};

/// Adapter that passes only host memory to a visitor. Device tensors are copied to the host before
/// the visit and back after it, with a host synchronization. A copy lives as long as the visit.
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
