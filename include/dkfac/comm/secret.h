#pragma once

#include <string>

#include "dkfac/comm/communicator.h"
#include "dkfac/core/export.h"

namespace dkfac::comm {

/// Secret by which the ranks of a job prove to each other over TCP that they belong to it, equal on
/// all of them. It needs a build with OpenSSL's libcrypto, can_use_secrets().
struct DKFAC_API Secret {
  /// At least 16 bytes, chosen at random. Empty: that of the environment, in DKFAC_SECRET or in the
  /// file DKFAC_SECRET_FILE without white space at its end; else ranks connect without one.
  std::string text = {};
  bool required = false;  ///< No connection to another rank without a secret.
};

/// Whether this build has libcrypto.
[[nodiscard]] DKFAC_API bool can_use_secrets() noexcept;

/// One sentence for users where the ranks of a communicator of make_tcp() or World are on several
/// machines and connected without a secret, on rank 0 alone; else empty.
[[nodiscard]] DKFAC_API std::string secret_warning(const Communicator& comm);

}  // namespace dkfac::comm
