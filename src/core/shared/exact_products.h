#pragma once

#include "dkfac/core/context.h"

namespace dkfac {

/// Products of f32 matrices take their operands as they are while it lives, whatever
/// ContextOptions::tf32 says: for results that are small differences. Scopes nest.
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
