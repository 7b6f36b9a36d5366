#pragma once

#include "dkfac/core/context.h"

namespace dkfac {

/// Scope in which f32 matrix products on a device may round their operands to TF32 or not,
/// regardless of ContextOptions::tf32. Scopes nest.
class ProductRounding {
 public:
  ProductRounding(Context& ctx, bool tf32);
  ~ProductRounding();
  ProductRounding(const ProductRounding&) = delete;
  ProductRounding& operator=(const ProductRounding&) = delete;

 private:
  Context& ctx_;
  bool before_;
};

/// Scope of exact f32 operands, for results that are small differences.
struct ExactProducts : ProductRounding {
  explicit ExactProducts(Context& ctx) : ProductRounding(ctx, false) {}
};

/// Scope in which operands may be rounded where `on`, or where they may be anyway.
struct RoundedProducts : ProductRounding {
  RoundedProducts(Context& ctx, bool on) : ProductRounding(ctx, ctx.tf32() || on) {}
};

}  // namespace dkfac
