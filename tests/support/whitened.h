#pragma once

#include "dkfac/data/dataset.h"
#include "dkfac/nn/whitening.h"

namespace dkfac::testing {

/// Views of both arguments, which must outlive the result.
inline nn::WhiteningImages images_of(const data::Dataset& data,
                                     const data::Normalization& normalization) {
  return {.pixels = data.pixels,
          .count = data.count,
          .height = data.height,
          .width = data.width,
          .channels = data.channels,
          .mean = normalization.mean,
          .stddev = normalization.stddev};
}

}  // namespace dkfac::testing
