#pragma once

namespace dkfac::comm {

/// Whether this build has MPI; answered by the MPI sources or by their stub.
[[nodiscard]] bool has_mpi() noexcept;

}  // namespace dkfac::comm
