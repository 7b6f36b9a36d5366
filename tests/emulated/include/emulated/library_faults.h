#pragma once

/// Failures of libraries of the emulated device on request.
namespace emulated {

/// Makes libraries and graphs find no memory for themselves until pools have been trimmed this
/// often, as where pools cache all memory. 0: they find some.
void starve_libraries(int trims);
/// Whether they find none at present.
[[nodiscard]] bool libraries_starve();

/// Makes devices report that they have no memory pools; none is created then.
void hide_memory_pools(bool hidden);

}  // namespace emulated
