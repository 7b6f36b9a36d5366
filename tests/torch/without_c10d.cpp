// A program that does not pass on the flags of a LibTorch with c10d.
#include "dkfac/torch/process_group.hpp"
