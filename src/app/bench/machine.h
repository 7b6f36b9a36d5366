#pragma once

#include <nlohmann/json.hpp>

#include "dkfac/core/context.h"

namespace dkfac::app::bench {

/// Describes the environment of a measurement: processor, cores, threads, libraries, version,
/// launch variables.
[[nodiscard]] nlohmann::ordered_json machine_json();
/// Returns the peak resident set size of this process.
[[nodiscard]] double peak_rss_bytes();

/// Measured peak rates of this machine with the context's threads.
struct Roof {
  double gflops = 0;         ///< Best of several f32 products of square matrices.
  double copy_gb_per_s = 0;  ///< Best of several copies of 64 MB, read and written bytes.
};
[[nodiscard]] Roof measure_roof(Context& ctx);
[[nodiscard]] nlohmann::ordered_json to_json(const Roof& roof);

}  // namespace dkfac::app::bench
