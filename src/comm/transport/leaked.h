#pragma once

#include <memory>

namespace dkfac::comm {

/// Keeps memory that a backend may still access after a failure until the process ends.
void leak_until_exit(std::shared_ptr<void> memory);

}  // namespace dkfac::comm
