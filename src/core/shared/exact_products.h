#pragma once

#include "dkfac/core/context.h"

namespace dkfac {

/// Scope in which f32 matrix products use exact f32 operands regardless of ContextOptions::tf32,
/// for results that are small differences. Scopes nest.
class ExactProducts {
 public:
  explicit ExactProducts(Context& ctx);
  ~ExactProducts();
  ExactProducts(const ExactProducts&) = delete;
  ExactProducts& operator=(const ExactProducts&) = delete;

 private:
  Context& ctx_;
  bool before_;
};

}  // namespace dkfac
