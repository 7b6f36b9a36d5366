#pragma once

#include <cstddef>

#include "comm/transport/collective_phases.h"

namespace dkfac::comm {

/// Makes the reduce phase of more than kMostInRankOrder ranks, by recursive halving: the steps of
/// tree_steps(), in which sums travel towards the owners of their segments. call.in is overwritten.
/// Sums of 16-bit parts are f32 until their owner rounds them; parts of one rank travel as they
/// are.
[[nodiscard]] Phase make_tree_reduce_phase(const PhaseArguments& arguments, std::byte* out);
/// Makes the gather phase, by recursive doubling: the same steps backwards.
[[nodiscard]] Phase make_tree_gather_phase(const PhaseArguments& arguments, const std::byte* in);

}  // namespace dkfac::comm
