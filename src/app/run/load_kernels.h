#pragma once

namespace dkfac::app {

/// Has CUDA load kernels when it starts, unless the environment says otherwise: one that is loaded
/// at its first launch may wait for a collective whose peer waits likewise. To be called by a
/// program of several ranks while it has one thread, before anything asks for a device.
void load_kernels_early();

}  // namespace dkfac::app
