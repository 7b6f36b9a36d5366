#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

#include "dkfac/c/dkfac.h"

#include "c/convert.h"
#include "core/shared/fields.h"

namespace dkfac::c {
namespace {

dkfac_comm_options default_comm_options() {
  const comm::Options defaults;
  dkfac_comm_options options{};
  options.struct_size = sizeof options;
  options.timeout_s = defaults.timeout_s;
  options.check_calls = defaults.check == comm::Check::full;
  options.piece_bytes = defaults.piece_bytes;
  return options;
}

/// Reads a field of the C interface into one of the library. Messages name it; an enum has the
/// `count` first enumerators.
struct Reader {
  const char* operation;

  template <class Field, class Option>
  void operator()(Field field, Option& option, const char* name = "", int count = 0) const {
    if constexpr (std::is_same_v<Option, bool>)
      option = flag_of(field, operation, name);
    else if constexpr (std::is_same_v<Option, DType>)
      option = dtype_of(field, operation, name);
    else if constexpr (std::is_same_v<Option, std::optional<DType>>)
      option = wire_of(field, operation, name);
    else if constexpr (std::is_enum_v<Option>)
      option = enum_of<Option>(field, count, operation, name);
    else
      option = field;
  }
};

/// Writes a field of the library into one of the C interface.
struct Writer {
  template <class Field, class Option>
  void operator()(Field& field, const Option& option, const char* = "", int = 0) const {
    if constexpr (std::is_same_v<Option, std::optional<DType>>)
      field = option ? static_cast<Field>(*option) : DKFAC_SAME_DTYPE;
    else
      field = static_cast<Field>(option);
  }
};

/// move_fields(c, options, move) calls move() with each field of the C struct and that of the
/// library, for a Reader or a Writer.
template <OptionsOf<CommunicationOptions> Options, class Move>
void move_fields(auto& c, Options& o, const Move& move) {
  move(c.overlap, o.overlap, "overlap");
  move(c.bucket_bytes, o.bucket_bytes);
  move(c.gradient_wire, o.gradient_wire, "gradient_wire");
}

/// All but failure_folder, which has another type.
template <OptionsOf<kfac::CurvatureOptions> Options, class Move>
void move_fields(auto& c, Options& o, const Move& move) {
  move(c.damping, o.damping);
  move(c.relative_damping, o.relative_damping);
  move(c.damping_split, o.damping_split, "damping_split", 3);
  move(c.norm_damping, o.norm_damping);
  auto& statistics = o.statistics;
  move(c.new_weight, statistics.new_weight);
  move(c.average_start, statistics.average_start, "average_start", 3);
  move(c.statistics_fraction, statistics.fraction);
  move(c.micro_batches, statistics.micro_batches);
  move(c.norm_fisher, statistics.norm_fisher, "norm_fisher", 3);
  move(c.sharing, statistics.sharing, "sharing", 2);
  move(c.operand, statistics.operand, "operand");
  move(c.low_rank, statistics.low_rank, "low_rank");
  move(c.records_valid_until_step, statistics.records_valid_until_step, "records_valid_until_step");
  auto& refresh = o.refresh;
  move(c.staleness, refresh.staleness, "staleness", 2);
  move(c.statistics_interval, refresh.statistics_interval);
  move(c.inverse_interval, refresh.inverse_interval);
  move(c.overhead, refresh.overhead);
  move(c.early_refreshes, refresh.early_refreshes, "early_refreshes");
  move(c.stagger_inverses, refresh.stagger_inverses, "stagger_inverses");
  move(c.delay_inverses, refresh.delay_inverses, "delay_inverses");
  move(c.similarity, refresh.similarity);
  move(c.max_interval, refresh.max_interval);
  move(c.inverse_method, o.inverse.method, "inverse_method", 3);
  move(c.block_width, o.inverse.block_width);
  move(c.max_failed_refreshes, o.inverse.max_failed_refreshes);
  auto& distribution = o.distribution;
  move(c.grad_worker_fraction, distribution.grad_worker_fraction);
  move(c.calibrate, distribution.calibrate, "calibrate");
  move(c.split_factors, distribution.split_factors, "split_factors");
  move(c.split_wide, distribution.split_wide, "split_wide");
  move(c.local_statistics, distribution.local_statistics, "local_statistics");
  move_fields(c, o.communication, move);
  move(c.statistics_wire, o.communication.statistics_wire, "statistics_wire");
  move(c.weight_wire, o.communication.weight_wire, "weight_wire");
  move(c.kl_clip, o.kl_clip);
  move(c.step_length, o.step_length, "step_length", 5);
  move(c.precondition_tf32, o.precondition_tf32, "precondition_tf32");
  move(c.dtype, o.dtype, "dtype");
  move(c.loss_reduction, o.loss_reduction, "loss_reduction", 3);
}

/// Those that an optimizer has; K-FAC's without those of its curvature.
template <class Options, class Move>
void move_fields(auto& c, Options& o, const Move& move) {
  move(c.weight_decay, o.weight_decay);
  if constexpr (requires { o.momentum; }) move(c.momentum, o.momentum);
  if constexpr (requires { o.nesterov; }) move(c.nesterov, o.nesterov, "nesterov");
  if constexpr (requires { o.momentum_correction; })
    move(c.momentum_correction, o.momentum_correction, "momentum_correction");
  if constexpr (requires { o.epsilon; }) move(c.epsilon, o.epsilon);
  if constexpr (OptionsOf<Options, optim::LarsOptions>) {
    move(c.eta, o.eta);
    move(c.lars_form, o.form, "lars_form", 4);
    move(c.min_trust, o.min_trust);
    move(c.max_trust, o.max_trust);
  }
  if constexpr (requires { o.beta1; }) {
    move(c.beta1, o.beta1);
    move(c.beta2, o.beta2);
  }
  if constexpr (OptionsOf<Options, optim::MuonOptions>) {
    move(c.muon_scale, o.scale, "muon_scale", 2);
    move(c.adam_rate, o.adam_rate);
  }
  if constexpr (OptionsOf<Options, optim::KfacOptions>) {
    move(c.update, o.update, "update", 2);
    move(c.momentum_rule, o.momentum_rule, "momentum_rule", 3);
    move(c.initial_lr, o.initial_lr);
    move(c.rescale, o.rescale, "rescale", 3);
  } else {
    move(c.loss_reduction, o.loss_reduction, "loss_reduction", 3);
    move_fields(c, o.communication, move);
  }
}

dkfac_curvature_options default_curvature() {
  dkfac_curvature_options options{};
  options.struct_size = sizeof options;
  const kfac::CurvatureOptions defaults;
  move_fields(options, defaults, Writer{});
  return options;
}

dkfac_context_options default_context() {
  dkfac_context_options options{};
  options.struct_size = sizeof options;
  options.graphs = ContextOptions{}.graphs;
  return options;
}

dkfac_optimizer_options default_optimizer(std::int32_t kind) {
  dkfac_optimizer_options options{};
  options.struct_size = sizeof options;
  options.kind = kind;
  const auto set = [&options](const auto& defaults) { move_fields(options, defaults, Writer{}); };
  // A field that the kind does not use has the default of the last of these that does.
  set(optim::KfacOptions{});
  set(optim::MuonOptions{});
  set(optim::AdamwOptions{});
  set(optim::LarsOptions{});
  set(optim::SgdOptions{});
  if (kind == DKFAC_LARS) set(optim::LarsOptions{});
  if (kind == DKFAC_ADAMW) set(optim::AdamwOptions{});
  if (kind == DKFAC_MUON) set(optim::MuonOptions{});
  if (kind == DKFAC_KFAC) set(optim::KfacOptions{});
  return options;
}

}  // namespace

comm::Options comm_options(const dkfac_comm_options* given, const char* operation) {
  const dkfac_comm_options o =
      known_fields(given, default_comm_options(), operation, "dkfac_comm_options");
  return {.timeout_s = o.timeout_s,
          .check = flag_of(o.check_calls, operation, "check_calls") ? comm::Check::full
                                                                    : comm::Check::hash,
          .piece_bytes = o.piece_bytes};
}

comm::Secret comm_secret(const dkfac_comm_options* given, const char* operation) {
  const dkfac_comm_options o =
      known_fields(given, default_comm_options(), operation, "dkfac_comm_options");
  return {.text = o.secret == nullptr ? "" : o.secret,
          .required = flag_of(o.require_secret, operation, "require_secret")};
}

kfac::CurvatureOptions curvature_options(const dkfac_curvature_options* given,
                                         const char* operation) {
  const dkfac_curvature_options o =
      known_fields(given, default_curvature(), operation, "dkfac_curvature_options");
  kfac::CurvatureOptions options;
  move_fields(o, options, Reader{operation});
  if (o.failure_folder != nullptr) options.inverse.failure_folder = o.failure_folder;
  options.validate();
  return options;
}

Execution execution(const dkfac_context_options* given, const char* operation) {
  const dkfac_context_options o =
      known_fields(given, default_context(), operation, "dkfac_context_options");
  Execution execution{.device = device_of(o.device, operation), .options = {}};
  execution.options.threads = o.threads;
  execution.options.tf32 = flag_of(o.tf32, operation, "tf32");
  execution.options.graphs = flag_of(o.graphs, operation, "graphs");
  return execution;
}

std::unique_ptr<optim::Optimizer> make_optimizer(std::shared_ptr<comm::Communicator> comm,
                                                 const dkfac_optimizer_options* given,
                                                 const dkfac_curvature_options* curvature,
                                                 const Execution& execution,
                                                 const char* operation) {
  const std::int32_t kind_number = required(given, operation, "options").kind;
  const dkfac_optimizer_options o =
      known_fields(given, default_optimizer(kind_number), operation, "dkfac_optimizer_options");
  const auto kind = enum_of<dkfac_optimizer_kind>(o.kind, 5, operation, "the kind of optimizer");
  DKFAC_CHECK(kind == DKFAC_KFAC || curvature == nullptr, "[", operation,
              "] curvature options are for DKFAC_KFAC; pass null");
  const auto made = [&](auto options, const auto& make) {
    move_fields(o, options, Reader{operation});
    return make(std::move(comm), options, execution.device, execution.options);
  };
  switch (kind) {
    case DKFAC_SGD:
      return made(optim::SgdOptions{}, optim::make_sgd);
    case DKFAC_LARS:
      return made(optim::LarsOptions{}, optim::make_lars);
    case DKFAC_ADAMW:
      return made(optim::AdamwOptions{}, optim::make_adamw);
    case DKFAC_MUON:
      return made(optim::MuonOptions{}, optim::make_muon);
    case DKFAC_KFAC:
      break;
  }
  const dkfac_optimizer_options unused = default_optimizer(kind);
  DKFAC_CHECK(o.loss_reduction == unused.loss_reduction && o.overlap == unused.overlap &&
                  o.bucket_bytes == unused.bucket_bytes && o.gradient_wire == unused.gradient_wire,
              "[", operation,
              "] K-FAC takes loss_reduction, overlap, bucket_bytes and gradient_wire from its "
              "curvature options; set them in dkfac_curvature_options");
  return made(optim::KfacOptions{.curvature = curvature_options(curvature, operation)},
              optim::make_kfac);
}

}  // namespace dkfac::c

void dkfac_comm_options_init(dkfac_comm_options* options, size_t struct_size) {
  dkfac::c::write_fields(options, struct_size, dkfac::c::default_comm_options());
}
void dkfac_curvature_options_init(dkfac_curvature_options* options, size_t struct_size) {
  dkfac::c::write_fields(options, struct_size, dkfac::c::default_curvature());
}
void dkfac_context_options_init(dkfac_context_options* options, size_t struct_size) {
  dkfac::c::write_fields(options, struct_size, dkfac::c::default_context());
}
void dkfac_optimizer_options_init(dkfac_optimizer_options* options, size_t struct_size,
                                  int32_t kind) {
  dkfac::c::write_fields(options, struct_size, dkfac::c::default_optimizer(kind));
}
