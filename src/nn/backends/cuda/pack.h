#pragma once

#include "core/shared/cuda/convert.h"
#include "core/shared/pack.h"

namespace dkfac::nn::cuda {

using dkfac::cuda::addresses_of;
using dkfac::cuda::are_aligned;
using dkfac::cuda::as_packs;
using dkfac::cuda::FullPack;
using dkfac::cuda::kPack;
using dkfac::cuda::Pack;
using dkfac::cuda::packs_of;
using dkfac::cuda::rounded;
using dkfac::cuda::visit_words;
using dkfac::cuda::widened;
using dkfac::cuda::Word;

}  // namespace dkfac::nn::cuda
