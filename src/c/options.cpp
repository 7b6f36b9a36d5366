#include <memory>
#include <utility>

#include "dkfac/c/dkfac.h"

#include "c/convert.h"

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

std::int32_t number_of(const std::optional<DType>& dtype) {
  return dtype ? static_cast<std::int32_t>(*dtype) : DKFAC_SAME_DTYPE;
}

dkfac_curvature_options default_curvature() {
  const kfac::CurvatureOptions d;
  dkfac_curvature_options o{};
  o.struct_size = sizeof o;
  o.damping = d.damping;
  o.relative_damping = d.relative_damping;
  o.damping_split = static_cast<std::int32_t>(d.damping_split);
  o.norm_damping = d.norm_damping;
  o.new_weight = d.statistics.new_weight;
  o.average_start = static_cast<std::int32_t>(d.statistics.average_start);
  o.statistics_fraction = d.statistics.fraction;
  o.micro_batches = d.statistics.micro_batches;
  o.norm_fisher = static_cast<std::int32_t>(d.statistics.norm_fisher);
  o.sharing = static_cast<std::int32_t>(d.statistics.sharing);
  o.operand = number_of(d.statistics.operand);
  o.low_rank = d.statistics.low_rank;
  o.records_valid_until_step = d.statistics.records_valid_until_step;
  o.staleness = static_cast<std::int32_t>(d.refresh.staleness);
  o.statistics_interval = d.refresh.statistics_interval;
  o.inverse_interval = d.refresh.inverse_interval;
  o.overhead = d.refresh.overhead;
  o.early_refreshes = d.refresh.early_refreshes;
  o.stagger_inverses = d.refresh.stagger_inverses;
  o.delay_inverses = d.refresh.delay_inverses;
  o.similarity = d.refresh.similarity;
  o.max_interval = d.refresh.max_interval;
  o.inverse_method = static_cast<std::int32_t>(d.inverse.method);
  o.max_failed_refreshes = d.inverse.max_failed_refreshes;
  o.grad_worker_fraction = d.distribution.grad_worker_fraction;
  o.calibrate = d.distribution.calibrate;
  o.split_factors = d.distribution.split_factors;
  o.split_wide = d.distribution.split_wide;
  o.local_statistics = d.distribution.local_statistics;
  o.kl_clip = d.kl_clip;
  o.step_length = static_cast<std::int32_t>(d.step_length);
  o.precondition_tf32 = d.precondition_tf32;
  o.dtype = static_cast<std::int32_t>(d.dtype);
  o.loss_reduction = static_cast<std::int32_t>(d.loss_reduction);
  o.overlap = d.communication.overlap;
  o.bucket_bytes = d.communication.bucket_bytes;
  o.gradient_wire = number_of(d.communication.gradient_wire);
  o.statistics_wire = number_of(d.communication.statistics_wire);
  o.weight_wire = number_of(d.communication.weight_wire);
  o.block_width = d.inverse.block_width;
  return o;
}

dkfac_context_options default_context() {
  dkfac_context_options options{};
  options.struct_size = sizeof options;
  options.graphs = ContextOptions{}.graphs;
  return options;
}

dkfac_optimizer_options default_optimizer(std::int32_t kind) {
  dkfac_optimizer_options o{};
  o.struct_size = sizeof o;
  o.kind = kind;
  const CommunicationOptions communication;
  o.overlap = communication.overlap;
  o.bucket_bytes = communication.bucket_bytes;
  o.gradient_wire = number_of(communication.gradient_wire);
  const optim::SgdOptions sgd;
  o.momentum = sgd.momentum;
  o.momentum_correction = sgd.momentum_correction;
  o.weight_decay = sgd.weight_decay;
  const optim::KfacOptions kfac;
  o.update = static_cast<std::int32_t>(kfac.update);
  o.momentum_rule = static_cast<std::int32_t>(kfac.momentum_rule);
  o.initial_lr = kfac.initial_lr;
  o.rescale = static_cast<std::int32_t>(kfac.rescale);
  const optim::AdamwOptions adamw;
  o.beta1 = adamw.beta1;
  o.beta2 = adamw.beta2;
  const optim::LarsOptions lars;
  o.eta = lars.eta;
  o.epsilon = lars.epsilon;
  o.lars_form = static_cast<std::int32_t>(lars.form);
  o.min_trust = lars.min_trust;
  o.max_trust = lars.max_trust;
  const optim::MuonOptions muon;
  o.muon_scale = static_cast<std::int32_t>(muon.scale);
  o.adam_rate = muon.adam_rate;
  if (kind == DKFAC_LARS) {
    o.momentum = lars.momentum;
    o.weight_decay = lars.weight_decay;
  } else if (kind == DKFAC_ADAMW) {
    o.epsilon = adamw.epsilon;
    o.weight_decay = adamw.weight_decay;
  } else if (kind == DKFAC_MUON) {
    o.momentum = muon.momentum;
    o.nesterov = muon.nesterov;
    o.weight_decay = muon.weight_decay;
    o.beta1 = muon.beta1;
    o.beta2 = muon.beta2;
    o.epsilon = muon.epsilon;
  } else if (kind == DKFAC_KFAC) {
    o.momentum = kfac.momentum;
    o.weight_decay = kfac.weight_decay;
    o.beta1 = kfac.beta1;
    o.beta2 = kfac.beta2;
    o.epsilon = kfac.epsilon;
  }
  return o;
}

CommunicationOptions communication(std::int32_t overlap, std::int64_t bucket_bytes,
                                   std::int32_t gradient_wire, const char* operation) {
  CommunicationOptions options;
  options.overlap = flag_of(overlap, operation, "overlap");
  options.bucket_bytes = bucket_bytes;
  options.gradient_wire = wire_of(gradient_wire, operation, "gradient_wire");
  return options;
}

/// Sets the fields that all optimizers but K-FAC share.
template <class Options>
void set_common(Options& options, const dkfac_optimizer_options& o, const char* operation) {
  options.weight_decay = o.weight_decay;
  options.loss_reduction = enum_of<LossReduction>(o.loss_reduction, 3, operation, "loss_reduction");
  options.communication = communication(o.overlap, o.bucket_bytes, o.gradient_wire, operation);
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
  const auto flag = [operation](std::int32_t value, const char* field) {
    return flag_of(value, operation, field);
  };
  kfac::CurvatureOptions options;
  options.damping = o.damping;
  options.relative_damping = o.relative_damping;
  options.damping_split =
      enum_of<kfac::DampingSplit>(o.damping_split, 3, operation, "damping_split");
  options.norm_damping = o.norm_damping;
  kfac::StatisticsOptions& statistics = options.statistics;
  statistics.new_weight = o.new_weight;
  statistics.average_start =
      enum_of<kfac::AverageStart>(o.average_start, 3, operation, "average_start");
  statistics.fraction = o.statistics_fraction;
  statistics.micro_batches = o.micro_batches;
  statistics.norm_fisher =
      enum_of<decltype(statistics.norm_fisher)>(o.norm_fisher, 3, operation, "norm_fisher");
  statistics.sharing = enum_of<kfac::WeightSharing>(o.sharing, 2, operation, "sharing");
  statistics.operand = wire_of(o.operand, operation, "operand");
  statistics.low_rank = flag(o.low_rank, "low_rank");
  statistics.records_valid_until_step =
      flag(o.records_valid_until_step, "records_valid_until_step");
  options.refresh = {.staleness = enum_of<kfac::Staleness>(o.staleness, 2, operation, "staleness"),
                     .statistics_interval = o.statistics_interval,
                     .inverse_interval = o.inverse_interval,
                     .overhead = o.overhead,
                     .early_refreshes = flag(o.early_refreshes, "early_refreshes"),
                     .stagger_inverses = flag(o.stagger_inverses, "stagger_inverses"),
                     .delay_inverses = flag(o.delay_inverses, "delay_inverses"),
                     .similarity = o.similarity,
                     .max_interval = o.max_interval};
  options.inverse = {
      .method = enum_of<kfac::InverseMethod>(o.inverse_method, 3, operation, "inverse_method"),
      .block_width = o.block_width,
      .max_failed_refreshes = o.max_failed_refreshes,
      .failure_folder = o.failure_folder == nullptr ? "" : o.failure_folder};
  options.distribution = {.grad_worker_fraction = o.grad_worker_fraction,
                          .calibrate = flag(o.calibrate, "calibrate"),
                          .split_factors = flag(o.split_factors, "split_factors"),
                          .split_wide = flag(o.split_wide, "split_wide"),
                          .local_statistics = flag(o.local_statistics, "local_statistics")};
  options.communication = communication(o.overlap, o.bucket_bytes, o.gradient_wire, operation);
  options.communication.statistics_wire = wire_of(o.statistics_wire, operation, "statistics_wire");
  options.communication.weight_wire = wire_of(o.weight_wire, operation, "weight_wire");
  options.kl_clip = o.kl_clip;
  options.step_length = enum_of<kfac::StepLength>(o.step_length, 5, operation, "step_length");
  options.precondition_tf32 = flag(o.precondition_tf32, "precondition_tf32");
  options.dtype = dtype_of(o.dtype, operation, "dtype");
  options.loss_reduction = enum_of<LossReduction>(o.loss_reduction, 3, operation, "loss_reduction");
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
  const auto& [device, context] = execution;
  switch (kind) {
    case DKFAC_SGD: {
      optim::SgdOptions options;
      set_common(options, o, operation);
      options.momentum = o.momentum;
      options.nesterov = flag_of(o.nesterov, operation, "nesterov");
      options.momentum_correction =
          flag_of(o.momentum_correction, operation, "momentum_correction");
      return optim::make_sgd(std::move(comm), options, device, context);
    }
    case DKFAC_LARS: {
      optim::LarsOptions options;
      set_common(options, o, operation);
      options.momentum = o.momentum;
      options.nesterov = flag_of(o.nesterov, operation, "nesterov");
      options.eta = o.eta;
      options.epsilon = o.epsilon;
      options.form = enum_of<optim::LarsForm>(o.lars_form, 4, operation, "lars_form");
      options.min_trust = o.min_trust;
      options.max_trust = o.max_trust;
      return optim::make_lars(std::move(comm), options, device, context);
    }
    case DKFAC_ADAMW: {
      optim::AdamwOptions options;
      set_common(options, o, operation);
      options.beta1 = o.beta1;
      options.beta2 = o.beta2;
      options.epsilon = o.epsilon;
      return optim::make_adamw(std::move(comm), options, device, context);
    }
    case DKFAC_MUON: {
      optim::MuonOptions options;
      set_common(options, o, operation);
      options.momentum = o.momentum;
      options.nesterov = flag_of(o.nesterov, operation, "nesterov");
      options.scale = enum_of<optim::MuonScale>(o.muon_scale, 2, operation, "muon_scale");
      options.adam_rate = o.adam_rate;
      options.beta1 = o.beta1;
      options.beta2 = o.beta2;
      options.epsilon = o.epsilon;
      return optim::make_muon(std::move(comm), options, device, context);
    }
    case DKFAC_KFAC:
      break;
  }
  const dkfac_optimizer_options unused = default_optimizer(kind);
  DKFAC_CHECK(o.loss_reduction == unused.loss_reduction && o.overlap == unused.overlap &&
                  o.bucket_bytes == unused.bucket_bytes && o.gradient_wire == unused.gradient_wire,
              "[", operation,
              "] K-FAC takes loss_reduction, overlap, bucket_bytes and gradient_wire from its "
              "curvature options; set them in dkfac_curvature_options");
  optim::KfacOptions options;
  options.curvature = curvature_options(curvature, operation);
  options.update = enum_of<optim::DirectionUpdate>(o.update, 2, operation, "update");
  options.beta1 = o.beta1;
  options.beta2 = o.beta2;
  options.epsilon = o.epsilon;
  options.momentum = o.momentum;
  options.momentum_rule =
      enum_of<optim::MomentumRule>(o.momentum_rule, 3, operation, "momentum_rule");
  options.initial_lr = o.initial_lr;
  options.rescale = enum_of<optim::Rescale>(o.rescale, 3, operation, "rescale");
  options.weight_decay = o.weight_decay;
  return optim::make_kfac(std::move(comm), options, device, context);
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
