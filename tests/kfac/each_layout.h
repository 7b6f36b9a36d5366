#pragma once

#include <vector>

#include "dkfac/kfac/layer_spec.h"

namespace dkfac::testing {

/// `shapes` in both layouts, without and with a bias.
inline std::vector<kfac::Conv2dSpec> in_each_layout(const std::vector<kfac::Conv2dSpec>& shapes) {
  std::vector<kfac::Conv2dSpec> out;
  for (kfac::Conv2dSpec s : shapes) {
    for (const kfac::Layout layout : {kfac::Layout::nhwc, kfac::Layout::nchw}) {
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
