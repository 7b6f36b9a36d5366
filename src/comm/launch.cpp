#include "dkfac/comm/launch.h"

#include <charconv>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "dkfac/core/error.h"

namespace dkfac::comm {

namespace {

struct Launcher {
  const char* name;
  const char* rank;
  const char* size;
};

/// Asked in this order: mpirun inside a Slurm job sets its own variables beside Slurm's. Slurm's
/// step variables exist only under srun; a batch script itself is one process.
constexpr Launcher kLaunchers[] = {
    {"openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
    {"slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"},
    {"pmi", "PMI_RANK", "PMI_SIZE"},
};

std::optional<int> number_of(const char* variable) {
  const char* value = std::getenv(variable);
  if (value == nullptr) return std::nullopt;
  const std::string_view text(value);
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  DKFAC_CHECK(error == std::errc{} && end == text.data() + text.size() && number >= 0,
              "[launch] the environment variable ", variable, " is '", text,
              "'; a number >= 0 was expected");
  return number;
}

}  // namespace

LaunchInfo detect_launch() {
  for (const Launcher& launcher : kLaunchers) {
    const std::optional<int> rank = number_of(launcher.rank);
    const std::optional<int> size = number_of(launcher.size);
    if (!rank || !size) continue;
    DKFAC_CHECK(*rank < *size, "[launch] ", launcher.rank, " is ", *rank, " but ", launcher.size,
                " is ", *size);
    return {*rank, *size, launcher.name};
  }
  return {0, 1, "none"};
}

}  // namespace dkfac::comm
