// Options made, copied and assigned in a separate program, whose warnings are errors: compilers
// have taken the unset optionals in them for uninitialised memory.
#include "options.h"

#include <utility>
#include <vector>

#include "dkfac/optim/optimizer.h"

namespace {

template <class Options>
Options changed(Options options, double momentum) {
  options.momentum = momentum;
  return options;
}

/// Through every way to make one from another.
template <class Options>
Options passed_on(const Options& first) {
  Options copy(first), assigned, moved;
  assigned = copy;
  moved = std::move(copy);
  const std::vector<Options> several{first, assigned, moved};
  return several.back();
}

}  // namespace

double sum_of_options(double momentum) {
  namespace optim = dkfac::optim;
  dkfac::kfac::CurvatureOptions curvature;
  curvature.damping = momentum;
  optim::KfacOptions options{.curvature = passed_on(curvature)};
  options.weight_decay = momentum;
  const optim::KfacOptions second = passed_on(changed(options, momentum));
  const optim::SgdOptions sgd = passed_on(changed(optim::SgdOptions{}, momentum));
  const optim::LarsOptions lars = passed_on(changed(optim::LarsOptions{}, momentum));
  return second.momentum + second.curvature.damping + sgd.momentum + lars.momentum;
}
