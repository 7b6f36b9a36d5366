#pragma once

#include <memory>

#include "dkfac/c/dkfac.h"
#include "dkfac/torch/layers.hpp"

/// Ranks that train a model together; part of dkfac/torch.hpp.
namespace dkfac::libtorch {

/// A communicator of the C interface: comm_of() a process group (dkfac/torch/process_group.hpp), or
/// one of dkfac_comm_tcp() or dkfac_comm_world(), with dkfac_comm_destroy() as its deleter.
using Comm = std::shared_ptr<dkfac_comm>;

namespace detail {

/// Owns what `make(&comm)` makes.
template <class Make>
Comm made_comm(Make make) {
  dkfac_comm* comm = nullptr;
  check(make(&comm));
  return {comm, dkfac_comm_destroy};
}

}  // namespace detail
}  // namespace dkfac::libtorch
