#pragma once

#include "optim/adamw_rule.h"
#include "optim/sgd_rule.h"

/// The rules that update each element from its own gradient and state alone. A pass has the numbers
/// of one step; scaled(rate, decay) is that of a parameter with these multiples, and Rule<T>, made
/// from it, is called as rule(gradient, slots, weight).
#define DKFAC_ELEMENTWISE_PASSES(DO) \
  DO(SgdPass)                        \
  DO(AdamwPass)
