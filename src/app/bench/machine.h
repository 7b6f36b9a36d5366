#pragma once

#include <nlohmann/json.hpp>

#include "dkfac/core/context.h"

namespace dkfac::app::bench {

/// Processor, cores, threads, libraries, version, launch variables: what a number depends on.
[[nodiscard]] nlohmann::ordered_json machine_json();
/// The most memory that this process has held so far.
[[nodiscard]] double peak_rss_bytes();

/// What this machine can do at most, measured here and now with the context's threads.
struct Roof {
  double gflops = 0;         ///< Best of several f32 products of square matrices.
  double copy_gb_per_s = 0;  ///< Best of several copies of 64 MB, read and written bytes.
};
[[nodiscard]] Roof measure_roof(Context& ctx);
[[nodiscard]] nlohmann::ordered_json to_json(const Roof& roof);

}  // namespace dkfac::app::bench
