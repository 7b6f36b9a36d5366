#pragma once

#include <vector>

#include "dkfac/core/layer_spec.h"

namespace dkfac::testing {

/// `shapes` in both layouts, without and with a bias.
inline std::vector<Conv2dSpec> in_each_layout(const std::vector<Conv2dSpec>& shapes) {
  std::vector<Conv2dSpec> out;
  for (Conv2dSpec s : shapes) {
    for (const Layout layout : {Layout::nhwc, Layout::nchw}) {
      for (const bool bias : {false, true}) {
        s.layout = layout;
        s.bias = bias;
        out.push_back(s);
      }
    }
  }
  return out;
}

}  // namespace dkfac::testing
