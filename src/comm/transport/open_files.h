#pragma once

namespace dkfac::comm {

/// Makes room for `more` open files of this process: where its soft limit does not allow them, the
/// limit is raised to the hard one. Throws Error, which names the limit, where that does not
/// suffice.
void reserve_files(int more);

}  // namespace dkfac::comm
