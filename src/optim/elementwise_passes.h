#pragma once

#include "optim/adamw_rule.h"
#include "optim/sgd_rule.h"

/// The update rules that are elementwise: each element is updated from its own gradient and state.
/// A pass has the parameters of one step, with `lr` and `weight_decay`. Rule<T>, constructed from
/// it, is called as rule(gradient, states, weight). The first name is that of its kernel.
#define DKFAC_ELEMENTWISE_PASSES(DO) \
  DO(sgd_update, SgdPass)            \
  DO(adamw_update, AdamwPass)
