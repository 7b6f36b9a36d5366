#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "dkfac/optim/optimizer.h"

/// One run of the probe (main.cpp), as data. Names of configurations are compared between trees of
/// different age, so they do not change when the library's names change.
namespace dkfac::probe {

enum class Method : std::uint8_t {
  sgd,
  lars,
  kfac,
  foreign  ///< A Preconditioner in a loop of the caller's own.
};

/// What goes wrong in a step, on the last rank.
enum class Fault : std::uint8_t { none, gradient, input, grad_output, loss, loss_value, no_batch };

/// What the caller does in one step; equal on all ranks.
struct StepPlan {
  double lr = 0.05;
  std::optional<double> momentum = std::nullopt;
  std::optional<kfac::CurvatureSettings> curvature = std::nullopt;
  std::int64_t batch = 12;  ///< Samples over all ranks.
  int micro_batches = 1;
  double loss_scale = 1;
  double input_size = 1, gradient_size = 1;  ///< Multiply what is recorded, and gradients.
  bool equal_columns = false;                ///< All elements of an input are equal: A is singular.
  Fault fault = Fault::none;
};

/// The run is saved after `step` steps and continued elsewhere.
struct Restart {
  int step = 13;
  int ranks = 1;
  Device device = {};
  double grad_worker_fraction = 0;
};

struct Configuration {
  std::string name;
  Method method = Method::kfac;
  optim::SgdOptions sgd = {};
  optim::LarsOptions lars = {};
  optim::KfacOptions kfac = {};  ///< Without its curvature, except wires;
  /// a Preconditioner has this one, too. Intervals are given, as clocks do not repeat.
  kfac::CurvatureOptions curvature = {.damping = 1e-3,
                                      .refresh = {.statistics_interval = 1, .inverse_interval = 1}};
  LossReduction reduction = LossReduction::local_mean;  ///< Of all of them.
  ContextOptions context = {};
  DType dtype = DType::f32;  ///< Of parameters and gradients.
  DType data = DType::f32;   ///< Of what is recorded.
  bool drawn = false;        ///< Statistics come from a pass of their own, before the gradients'.
  double weight_size = 1;    ///< Multiplies the weights of the start.
  int ranks = 1;
  Device device = {};
  int steps = 30;
  std::function<void(StepPlan&, int step)> plan = {};
  std::optional<Restart> restart = std::nullopt;
};

using Change = std::function<void(Configuration&)>;

/// Where a row of the matrix is run.
struct Axes {
  std::vector<int> ranks{1, 2, 3};
  std::vector<DType> dtypes{DType::f32, DType::f64};
};

/// Rows of the matrix, each a change of the defaults, multiplied with their axes.
class Table {
 public:
  /// `quick`: each row once, at some number of ranks and type, for as few steps as show all that
  /// happens; of both(), each in turns.
  Table(Device device, bool quick) : device_(device), quick_(quick) {}

  /// `change` comes after ranks, device and dtype have been set, so that it may depend on them.
  void add(const std::string& name, Method method, const Change& change, const Axes& axes = {});
  void kfac(const std::string& name, const Change& change, const Axes& axes = {}) {
    add("kfac." + name, Method::kfac, change, axes);
  }
  /// Kfac and Preconditioner.
  void both(const std::string& name, const Change& change, const Axes& axes = {}) {
    kfacs_turn_ = !kfacs_turn_;
    if (!quick_ || kfacs_turn_) kfac(name, change, axes);
    if (!quick_ || !kfacs_turn_) add("foreign." + name, Method::foreign, change, axes);
  }
  void every(const std::string& name, const Change& change) {
    add("sgd." + name, Method::sgd, change);
    add("lars." + name, Method::lars, change);
    both(name, change);
  }

  [[nodiscard]] Device device() const { return device_; }
  [[nodiscard]] const std::vector<Configuration>& all() const { return all_; }

 private:
  Device device_;
  bool quick_, kfacs_turn_ = false;
  std::size_t rows_ = 0;
  std::vector<Configuration> all_;
};

void add_options(Table& table);  ///< Each option of each optimizer (options_table.cpp).
void add_courses(Table& table);  ///< What happens in the course of a run (courses_table.cpp).

}  // namespace dkfac::probe
