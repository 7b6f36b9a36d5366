#pragma once

/// Failures of libraries of the emulated device on request.
namespace emulated {

/// Libraries and graphs find no memory for themselves until pools have been trimmed that often, as
/// where these hold all there is. 0: they find some.
void starve_libraries(int trims);
/// Whether they find none at present.
[[nodiscard]] bool libraries_starve();

/// Whether devices say that they have no memory pools; none is made then.
void hide_memory_pools(bool hidden);

}  // namespace emulated
