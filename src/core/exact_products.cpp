#include "core/shared/exact_products.h"

#include <utility>

#include "core/context_impl.h"

namespace dkfac {

ProductRounding::ProductRounding(Context& ctx, bool tf32)
    : ctx_(ctx), before_(std::exchange(ctx.impl().options.tf32, tf32)) {}

ProductRounding::~ProductRounding() { ctx_.impl().options.tf32 = before_; }

}  // namespace dkfac
