#pragma once

#include <memory>

namespace dkfac::comm {

/// Memory that a backend may still read or write after a failure: kept until the process ends.
void leak_until_exit(std::shared_ptr<void> memory);

}  // namespace dkfac::comm
