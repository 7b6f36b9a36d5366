#pragma once

#include <string>

#include "dkfac/comm/secret.h"

namespace dkfac::comm {

/// Returns the secret of a job, from `given` or the environment; empty without one. Throws
/// InvalidArgument where one is required and there is none, it is too short, or its file cannot be
/// read; Error where there is one and the build has no libcrypto. No message has its text.
[[nodiscard]] std::string find_secret(const Secret& given);

/// Throws InvalidArgument where a secret that is given is no secret, for a job that needs none.
void check_secret(const Secret& given);

}  // namespace dkfac::comm
