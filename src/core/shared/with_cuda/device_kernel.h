#pragma once

/// A kernel of a device (core/shared/kernel.h).
#define DKFAC_DEVICE_KERNEL(Result, name, ...) Result name(Context& ctx, __VA_ARGS__)
