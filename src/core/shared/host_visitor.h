#pragma once

#include <string>

#include "dkfac/core/context.h"
#include "dkfac/core/state.h"

namespace dkfac {

/// Adapter that passes a visitor host memory only. It copies tensors on the device of the context
/// to the host before the visit and back after it, and synchronizes. Host tensors are passed
/// unchanged.
class HostVisitor final : public StateVisitor {
 public:
  HostVisitor(Context& ctx, StateVisitor& visitor) : ctx_(ctx), visitor_(visitor) {}

  void tensor(const std::string& name, StateKind kind, TensorView view) override;
  void integer(const std::string& name, StateKind kind, std::int64_t& value) override {
    visitor_.integer(name, kind, value);
  }
  void real(const std::string& name, StateKind kind, double& value) override {
    visitor_.real(name, kind, value);
  }

 private:
  Context& ctx_;
  StateVisitor& visitor_;
};

}  // namespace dkfac
