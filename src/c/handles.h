#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dkfac/c/types.h"
#include "dkfac/comm/communicator.h"
#include "dkfac/comm/secret.h"
#include "dkfac/core/context.h"
#include "dkfac/kfac/factors.h"
#include "dkfac/kfac/preconditioner.h"
#include "dkfac/optim/optimizer.h"

/// The objects behind the opaque handles of the C interface.

struct dkfac_comm {
  std::shared_ptr<dkfac::comm::Communicator> comm;
  std::string warning = dkfac::comm::secret_warning(*comm);
};

struct dkfac_preconditioner {
  dkfac::kfac::Preconditioner object;
  dkfac::Device device;
  std::vector<dkfac::kfac::LayerGrad> grads;  ///< Of the step; kept for its capacity.
  mutable std::string text;                   ///< Of describe().
};

struct dkfac_optimizer {
  std::unique_ptr<dkfac::optim::Optimizer> owned;
  dkfac::optim::Optimizer& object;
  dkfac::Device device;
  mutable std::string text;
};

struct dkfac_factors {
  dkfac::kfac::LayerFactors factors;
  std::vector<std::vector<std::int64_t>> shapes;  ///< By dkfac_factor.
};
