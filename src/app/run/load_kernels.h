#pragma once

namespace dkfac::app {

/// Makes CUDA load kernels eagerly, unless the environment sets the loading mode. Loading a kernel
/// at its first launch may wait for a collective whose peer waits likewise, a deadlock. Call it in
/// a program of several ranks while it has one thread and before the first use of a device.
void load_kernels_early();

}  // namespace dkfac::app
