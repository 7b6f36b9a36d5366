#include "kfac/worker_grid.h"

#include <cmath>
#include <utility>

#include "dkfac/core/error.h"
#include "dkfac/core/threads.h"

namespace dkfac::kfac {
namespace {

/// "1/6, 1/3, 1/2, 1"
std::string possible_fractions(int world_size) {
  std::string text;
  for (int w = 1; w <= world_size; ++w) {
    if (world_size % w != 0) continue;
    const int below = world_size / w;
    text += text.empty() ? "" : ", ";
    text += below == 1 ? "1" : detail::concat("1/", below);
  }
  return text;
}

/// What the bits of a device's results depend on.
std::string device_arithmetic(const Context& ctx) {
  if (!ctx.device().is_cuda()) return "";
  const CudaInfo info = backend_info().cuda_info;
  const auto index = static_cast<std::size_t>(ctx.device().index);
  const CudaDevice device = index < info.devices.size() ? info.devices[index] : CudaDevice{};
  return detail::concat(", tf32 ", ctx.tf32() ? "on" : "off", ", ", device.name, " (",
                        device.capability, "), runtime ", info.runtime, ", cuBLAS ", info.cublas,
                        ", cuSOLVER ", info.cusolver);
}

}  // namespace

std::uint64_t WorkerGrid::bytes() const {
  std::uint64_t sum = world->bytes();
  if (row != world) sum += row->bytes();
  if (column != world) sum += column->bytes();
  return sum;
}

void WorkerGrid::progress() const {
  world->progress();
  if (row != world) row->progress();
  if (column != world) column->progress();
}

std::uint64_t WorkerGrid::contract_hash() const {
  // Columns move segments of their own, and some have nothing to move.
  return row == world ? world->contract_hash() : world->contract_hash() ^ row->contract_hash() * 3;
}

int workers_of(double fraction, int world_size) {
  if (fraction == 0) return 1;
  const double exact = fraction * world_size;
  const auto workers = std::isfinite(exact) ? static_cast<int>(std::lround(exact)) : 0;
  // A fraction such as 1/3 is known to some digits only.
  const bool fits = workers >= 1 && workers <= world_size && world_size % workers == 0 &&
                    std::abs(exact - workers) < 1e-3;
  DKFAC_CHECK(fits, "[curvature options] worker_fraction is ", fraction, " of ", world_size,
              " ranks; it must be 0 or one of ", possible_fractions(world_size));
  return workers;
}

WorkerGrid make_worker_grid(std::shared_ptr<comm::Communicator> comm, double fraction) {
  WorkerGrid grid;
  grid.workers = workers_of(fraction, comm->size());
  const int rank = comm->rank();
  grid.world = std::move(comm);
  if (grid.columns() > 1 && grid.workers > 1) {
    grid.row = grid.world->split(grid.row_of(rank), rank);
    grid.column = grid.world->split(grid.column_of(rank), rank);
    return grid;
  }
  const bool one_column = grid.columns() == 1 && grid.workers > 1;
  grid.row = one_column ? comm::make_self() : grid.world;
  grid.column = one_column || grid.world->size() == 1 ? grid.world : comm::make_self();
  return grid;
}

void require_equal_arithmetic(const WorkerGrid& grid, const Context& ctx) {
  comm::require_equal(*grid.world, ctx.device().is_cuda() ? "a CUDA device" : "the host",
                      "kind of device");
  if (grid.workers == 1) return;
  comm::require_equal(
      *grid.world,
      detail::concat("threads ", threads(), ", backend ",
                     ctx.backend() == Backend::fast ? "fast" : "reference", device_arithmetic(ctx)),
      "arithmetic (ContextOptions::threads and backend; on devices tf32, model and "
      "libraries), which has to be one with worker_fraction above 1/P,");
}

}  // namespace dkfac::kfac
