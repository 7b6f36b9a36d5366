#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "dkfac/comm/communicator.h"
#include "dkfac/core/context.h"
#include "dkfac/core/export.h"
#include "dkfac/core/layer_spec.h"
#include "dkfac/core/state.h"
#include "dkfac/core/stream.h"
#include "dkfac/core/tensor_view.h"
#include "dkfac/kfac/factors.h"
#include "dkfac/kfac/options.h"
#include "dkfac/kfac/report.h"

namespace dkfac::optim {

/// Parameters and gradients of one layer, borrowed from add_layer() until the optimizer is
/// destroyed. Contiguous, row-major, one dtype for all layers (f32 or f64), on the device of the
/// optimizer, in the shapes of LayerGrad (preconditioner.h). A BatchNorm has gamma as weight and
/// beta as bias. Views of what the spec lacks stay empty. A parameter that several layers share is
/// added once.
///
/// prepare() and step() write the parameters; from prepare() on, the caller may write them only
/// between two steps, and not at all with CommunicationOptions::weight_wire, whose master weights
/// replace them. grads_ready() reads the gradients; the optimizer never writes them.
struct DKFAC_API LayerParams {
  TensorView weight = {}, bias = {};
  TensorView weight_grad = {}, bias_grad = {};
  /// Multipliers of the learning rate of each parameter, which the KL clip heeds; >= 0.
  double weight_lr = 1, bias_lr = 1;
  double bias_decay = 0;  ///< Weight decay of the bias as a multiple of the option's; >= 0.
};

/// Computes the Gauss-Newton matrix of the loss along directions of all parameters, for
/// StepLength::quadratic: sums[i(i+1)/2 + j], j <= i < directions.size(), becomes the sum over some
/// samples of this rank of (J d_i)' H (J d_j), with the Jacobian J of a sample's outputs and the
/// Hessian H of its loss in them. Returns the number of these samples, which may be 0. directions:
/// one to three, [elements], those of the layers in the order of add_layer(), the weight of each
/// before its bias; of the dtype and on the device of the parameters. sums: f64 [6] there. Work is
/// ordered by `stream`, that of step(). nn::OptimizerAttachment has it for a Model.
using CurvatureAlong = std::function<std::int64_t(std::span<const ConstTensorView> directions,
                                                  TensorView sums, Stream stream)>;

/// Distributed optimizer: reduces local gradients and updates the parameters, bitwise identically
/// on every rank. SGD, LARS, AdamW, Muon and K-FAC implement it.
///
/// Call add_layer() in forward order, then prepare(). Per iteration: record_*() where
/// wants_statistics(); grads_ready() for every layer as soon as backward has computed its
/// gradients, in the same order on every rank; then step(). Gradients are those of this rank's
/// loss, in the reduction of the options. The optimizer averages or sums them over ranks, in
/// buckets whose reductions overlap with backward. Gradient buffers may be overwritten once
/// grads_ready() has returned.
///
/// On a CUDA device every call is ordered with the stream that is passed: it follows the work
/// enqueued on the stream before, and later work on the stream follows it. Overwriting gradients
/// and reading parameters on that stream is therefore safe. The host synchronizes with the device
/// once per step, to read the agreement on the step; K-FAC may wait more where Preconditioner does.
class DKFAC_API Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  [[nodiscard]] virtual std::string_view name() const = 0;  ///< As in configurations: "kfac".
  /// Adds a layer, before prepare(), and returns its id; ids count from 0. Throws InvalidArgument
  /// for an empty or duplicate name, an invalid spec, multipliers out of range, and views that do
  /// not fit the spec or the dtype of earlier layers. Throws DeviceError for views on another
  /// device.
  [[nodiscard]] virtual LayerId add_layer(std::string name, LayerSpec spec, LayerParams params) = 0;
  /// Fixes layers, owners and buckets; collective. Broadcasts the parameters from rank 0, so that
  /// all ranks start from the same values. On a device, they must have been written before the
  /// call, and the broadcast has finished when it returns. Throws InvalidArgument when layers or
  /// options differ between ranks, and where curvature does not fit into memory, as
  /// Preconditioner::prepare().
  virtual void prepare() = 0;

  /// Recording of statistics; ignored by first-order methods. Views, scales, lifetimes and errors
  /// are those of the same calls of Preconditioner (preconditioner.h), except that prepare() must
  /// come first.
  [[nodiscard]] virtual bool wants_statistics() const { return false; }
  [[nodiscard]] virtual bool wants_input(LayerId) const { return wants_statistics(); }
  [[nodiscard]] virtual bool wants_grad_output(LayerId) const { return wants_statistics(); }
  /// Sets damping, intervals, micro-batches and new weight for the coming steps; called before the
  /// first record of a step. Fields that are left out stay. Throws InvalidArgument for values out
  /// of range, and for other intervals or micro-batches after a record of the step.
  /// No-op for first-order methods. Options are not part of the state: after visit_state() the last
  /// ones set remain.
  virtual void set_curvature(const kfac::CurvatureSettings&) {}
  virtual void record_input(LayerId, ConstTensorView, Stream = Stream::cpu(), RecordScale = {}) {}
  virtual void record_grad_output(LayerId, ConstTensorView, Stream = Stream::cpu(),
                                  RecordScale = {}) {}
  virtual void record_normalization(LayerId, ConstTensorView /*x*/, ConstTensorView /*mean*/,
                                    ConstTensorView /*inv_std*/, ConstTensorView /*grad_output*/,
                                    Stream = Stream::cpu(), RecordScale = {}) {}
  /// Whether record_sample_gradients() may be called in place of record_normalization().
  [[nodiscard]] virtual bool takes_sample_gradients() const { return false; }
  virtual void record_sample_gradients(LayerId, ConstTensorView /*gradients*/,
                                       Stream = Stream::cpu(), RecordScale = {}) {}

  /// For passes whose device work is recorded once and replayed, as a CUDA graph: the state in
  /// which the next record_*() calls of this scale find the step. None (default): they cannot be
  /// replayed. They may be made while `stream` is recorded, and then send nothing to other ranks.
  [[nodiscard]] virtual std::optional<PassState> pass_state(RecordScale) { return std::nullopt; }
  /// Puts the step in a state that it has been in, in place of the record_*() calls that led there,
  /// and sends the buckets that are full then. Ordered with the stream as those calls are: they
  /// would have read what is enqueued on it. Called before and after each replay.
  virtual void resume(const PassState&, Stream = Stream::cpu()) {}

  /// Announces that the gradients of `layer`, in the views of add_layer(), are final: with gradient
  /// accumulation, once per step, after the last micro-batch. They are read in the order of
  /// `stream`, on the host before this returns, and may be overwritten afterwards. The optimizer
  /// divides them by scale.loss_scale. scale.global_batch is needed (> 0) for LossReduction::sum,
  /// whose sum it divides, and unused otherwise. Throws InvalidArgument for a layer that
  /// does not exist or was already announced in this step, and for a stream of another device;
  /// CommError when a reduction that it launches fails.
  virtual void grads_ready(LayerId layer, Stream stream = Stream::cpu(),
                           RecordScale scale = {}) = 0;
  /// Calls grads_ready() for these layers in this order; on a CUDA device in a number of kernels
  /// that does not depend on their number, for the whole of a replayed pass.
  virtual void all_grads_ready(std::span<const LayerId> layers, Stream stream = Stream::cpu(),
                               RecordScale scale = {}) {
    for (const LayerId layer : layers) grads_ready(layer, stream, scale);
  }
  /// Waits for the reductions, agrees with the other ranks on the step, and updates. On the host
  /// the parameters are updated when this returns, on a CUDA device for work enqueued on `stream`
  /// afterwards. args.flags.loss, f64[1] on the device of the optimizer, is read before the
  /// agreement.
  ///
  /// Throws InvalidArgument for arguments out of range, and for layers whose gradients were not
  /// announced or whose requested statistics were not recorded (unless this rank's flags reject the
  /// step). Throws CommError, and NumericError on every rank once a factor has failed too often:
  /// records and announced gradients of the step are then dropped, and nothing else is changed. To
  /// go on, change the damping after failed inversions, or load an earlier state by visit_state().
  virtual kfac::StepReport step(const StepArgs& args, Stream stream = Stream::cpu()) = 0;

  /// Sets what the next step with StepLength::quadratic calls, once, unless the step is rejected;
  /// that step() throws InvalidArgument without it. The samples should be of its batch, and not
  /// those of its statistics, along which the curvature looks too small. No-op for other
  /// optimizers.
  virtual void set_curvature_along(CurvatureAlong) {}

  /// Returns copies of the curvature of a layer, as Preconditioner::read_factors(); empty for
  /// first-order methods.
  [[nodiscard]] virtual kfac::LayerFactors read_factors(LayerId) { return {}; }

  /// Visits the state that determines later steps, without parameters and options; after prepare()
  /// and between two steps. After it is restored together with the parameters, the run continues
  /// bitwise identically; with another number of ranks, StateKind defines what becomes of each
  /// value. Announced gradients and records of an unfinished step are dropped, after what is being
  /// reduced of them, so that all ranks have to have announced the same. The visitor gets
  /// contiguous host memory, which it may read and write until its call returns; the host waits for
  /// the device.
  virtual void visit_state(StateVisitor&) {}

  [[nodiscard]] virtual std::string describe() const = 0;

 protected:
  Optimizer() = default;
};

struct DKFAC_API SgdOptions {
  double momentum = 0.9;  ///< In [0, 1).
  bool nesterov = false;
  /// L2 term added to the averaged gradient of weights. Never applied to gamma; applied to biases
  /// (beta included) only by LayerParams::bias_decay. >= 0.
  double weight_decay = 0;
  /// True: v <- m (lr/lr_old) v + lr g, w <- w - v, which rescales the buffer when lr changes
  /// (Goyal et al. 2017, section 3). It is computed as the equivalent u <- m u + g, w <- w - lr u,
  /// which is defined for lr = 0 too. False: v <- m v + lr g, w <- w - v.
  bool momentum_correction = true;
  LossReduction loss_reduction = LossReduction::local_mean;
  CommunicationOptions communication = {};
  void validate() const;
};

/// Published forms of LARS (docs/math.md, "LARS", with their sources).
enum class LarsForm : std::uint8_t {
  mlperf,      ///< Rate and trust ratio inside the momentum buffer.
  larc,        ///< min(trust / lr, 1) inside the buffer, the rate outside it.
  joint_norm,  ///< The ratio divides by |g + wd*w|.
  clipped      ///< The ratio is limited to [min_trust, max_trust].
};

/// LARS (You et al. 2017). For weights:
///   trust = eta*|w| / (|g| + wd*|w| + eps), 1 when a norm is zero,
///   v <- m v - lr*trust*(g + wd*w), w <- w + v,
/// as in the MLPerf reference; LarsForm changes trust ratio or buffer. BatchNorm and biases have
/// trust ratio 1, with the decay of LayerParams::bias_decay.
struct DKFAC_API LarsOptions {
  LarsForm form = LarsForm::mlperf;
  double momentum = 0.9;
  bool nesterov = false;
  double weight_decay = 1e-4;
  double eta = 1e-3;  ///< Trust coefficient, > 0.
  double epsilon = 0;
  double min_trust = 1e-5, max_trust = 1;  ///< Limits with LarsForm::clipped; 0 < min <= max.
  LossReduction loss_reduction = LossReduction::local_mean;
  CommunicationOptions communication = {};
  void validate() const;
};

/// AdamW (Loshchilov and Hutter 2019, algorithm 2), with the decay multiplied by the learning rate,
/// as in PyTorch:
///   m <- beta1 m + (1 - beta1) g, v <- beta2 v + (1 - beta2) g^2,
///   w <- (1 - lr weight_decay) w - lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon).
/// t counts updates from 1, without rejected steps. StepArgs::momentum replaces beta1; where beta1
/// changes, beta1^t is the product of its values over all updates.
struct DKFAC_API AdamwOptions {
  double beta1 = 0.9, beta2 = 0.999;  ///< In [0, 1).
  double epsilon = 1e-8;              ///< > 0
  /// Decoupled decay of weights. Never applied to gamma; applied to biases (beta included) only by
  /// LayerParams::bias_decay. >= 0.
  double weight_decay = 0.01;
  LossReduction loss_reduction = LossReduction::local_mean;
  CommunicationOptions communication = {};
  void validate() const;
};

/// Factors of Muon's directions, for a weight [rows, columns] (docs/math.md, "Muon").
enum class MuonScale : std::uint8_t {
  original,        ///< sqrt(max(1, rows/columns)): Jordan et al. 2024.
  match_rms_adamw  ///< 0.2 sqrt(max(rows, columns)), as long as AdamW's: Liu et al. 2025.
};

/// Muon (Jordan et al. 2024; Liu et al. 2025, with the decay). For a weight W as a matrix, Linear,
/// and Conv2d as [out, (in/groups)*kh*kw]:
///   V <- m V + G,   W <- (1 - lr weight_decay) W - lr scale newton_schulz(G + m V),
/// and newton_schulz(V) without Nesterov. StepArgs::momentum replaces m. The other parameters are
/// updated by AdamW: biases, normalisations, embeddings, and the weight of a PlainSpec, as which a
/// matrix can be added that is to have AdamW. Published runs do so with the output layer.
struct DKFAC_API MuonOptions {
  double momentum = 0.95;  ///< In [0, 1).
  bool nesterov = true;
  /// Decoupled decay of all weights, multiplied by the rate of each. Biases as with AdamW. >= 0.
  double weight_decay = 0.1;
  MuonScale scale = MuonScale::match_rms_adamw;
  /// AdamW's learning rate as a multiple of that of the matrices, >= 0: 1 with match_rms_adamw;
  /// published with MuonScale::original are 3e-4 / 0.02.
  double adam_rate = 1;
  double beta1 = 0.9, beta2 = 0.95;  ///< AdamW's, in [0, 1).
  double epsilon = 1e-8;             ///< AdamW's, > 0.
  LossReduction loss_reduction = LossReduction::local_mean;
  CommunicationOptions communication = {};
  void validate() const;
};

enum class MomentumRule : std::uint8_t {
  constant,   ///< v <- m0 v - lr U.
  corrected,  ///< The authors' code: m = m0 * lr/lr_old when lr falls, else m0.
  paper       ///< SP-NGD eq. 22-23: m = (m0/lr0) * lr, and v = w(t) - w(t-1) after rescaling.
};

/// Rescaling of Linear and Conv2d weights after the update: w <- sqrt(2 d_out) w / (|w| + 1e-9).
enum class Rescale : std::uint8_t {
  off,
  always,  ///< SP-NGD eq. 24.
  shrink   ///< The authors' code: only when the factor is below 1.
};

/// Rule that updates the weights with preconditioned gradients U, in place of gradients.
enum class DirectionUpdate : std::uint8_t {
  momentum,  ///< v <- m v - lr (U + weight_decay w), w <- w + v.
  adamw      ///< That of AdamwOptions; parameters without curvature are updated as by AdamW.
};

struct DKFAC_API KfacOptions {
  kfac::CurvatureOptions curvature = {};
  DirectionUpdate update = DirectionUpdate::momentum;
  /// StepLength::quadratic has rates of its own for direction and last step, times StepArgs::lr (1:
  /// the minimum of the model); weight_decay is then an L2 term of the loss. validate() refuses it
  /// with other values than these of `update`, momentum, momentum_rule, and rescale, and with
  /// 16-bit weights; StepArgs::momentum has no effect.
  ///
  /// This field and the next three are for DirectionUpdate::momentum. With adamw, validate()
  /// refuses other values than these, and a KL clip, which bounds steps of -lr U.
  double momentum = 0.9;
  MomentumRule momentum_rule = MomentumRule::corrected;
  /// lr0 of the paper's momentum rule, the highest rate of the run; needed (> 0) only for it.
  double initial_lr = 0;
  Rescale rescale = Rescale::off;
  /// AdamW's, as in AdamwOptions. With DirectionUpdate::momentum, validate() refuses other values.
  double beta1 = 0.9, beta2 = 0.999;
  double epsilon = 1e-8;
  /// Weight decay of weights, >= 0, and of biases as LayerParams::bias_decay has it. It is not
  /// preconditioned. It passes through momentum; that of adamw does not.
  double weight_decay = 0;
  void validate() const;
};

/// Returns the trust ratio of LARS for one weight (You et al. 2017, algorithm 1; docs/math.md,
/// "LARS"), with Frobenius norms:
///   eta*|w| / (|g| + weight_decay*|w| + epsilon), 1 when a norm is zero or NaN.
/// With LarsForm::joint_norm, gradient_norm is |g + weight_decay*w|, which replaces the first two
/// terms of the denominator. LarsForm::larc divides the ratio by `lr`, the rate of the step, and
/// limits it to 1; LarsForm::clipped limits it to [min_trust, max_trust]. Throws InvalidArgument
/// for options out of range, and for an lr that is negative or not finite.
[[nodiscard]] DKFAC_API double lars_trust_ratio(const LarsOptions& options, double weight_norm,
                                                double gradient_norm, double lr);

/// Returns the factor by which Rescale multiplies a weight w of d_out rows after its update (Osawa
/// et al. 2020, SP-NGD, eq. 24), with the Frobenius norm:
///   sqrt(2 d_out) / (|w| + 1e-9).
/// It is 1 with Rescale::off, and with Rescale::shrink where the factor is not below 1. Throws
/// InvalidArgument for d_out < 1.
[[nodiscard]] DKFAC_API double weight_rescaling(Rescale rule, std::int64_t d_out,
                                                double weight_norm);

/// Returns the factor of MuonScale for a weight [rows, columns]. Throws InvalidArgument for a
/// matrix without elements.
[[nodiscard]] DKFAC_API double muon_scale(MuonScale rule, std::int64_t rows, std::int64_t columns);

/// Newton-Schulz iteration of degree five, with the published values of Muon. 15/8, -10/8, 3/8 are
/// those with which it converges.
struct DKFAC_API NewtonSchulz {
  int iterations = 5;
  double a = 3.4445, b = -4.7750, c = 2.0315;
  double epsilon = 1e-7;  ///< > 0
};
/// Moves the singular values of x[m,n] towards 1, in place, and keeps its singular vectors:
///   x <- x / sqrt(|x|^2 + epsilon^2), with the Frobenius norm; then `iterations` times
///   x <- x (a I + b x'x + c (x'x)^2), by which a singular value s becomes a s + b s^3 + c s^5.
/// Five iterations with the published coefficients take every s >= 0.002 into [0.68, 1.21]; those
/// that converge take x to U V' of its singular value decomposition. x: f64 or f32, of any strides.
/// Asynchronous on a device. Throws InvalidArgument for a matrix without elements and for options
/// out of range.
DKFAC_API void newton_schulz(Context& ctx, const NewtonSchulz& options, TensorView x);

/// Make an optimizer of parameters on `device`, which `comm` has to support (comm::on_device()).
/// All ranks pass the same options; prepare() compares them. The caller may use `comm` between two
/// steps, in the same order on all ranks. Throw InvalidArgument for options out of range.
[[nodiscard]] DKFAC_API std::unique_ptr<Optimizer> make_sgd(
    std::shared_ptr<comm::Communicator> comm, SgdOptions options, Device device = Device::cpu(),
    ContextOptions context = {});
[[nodiscard]] DKFAC_API std::unique_ptr<Optimizer> make_lars(
    std::shared_ptr<comm::Communicator> comm, LarsOptions options, Device device = Device::cpu(),
    ContextOptions context = {});
[[nodiscard]] DKFAC_API std::unique_ptr<Optimizer> make_adamw(
    std::shared_ptr<comm::Communicator> comm, AdamwOptions options, Device device = Device::cpu(),
    ContextOptions context = {});
/// Makes a Muon optimizer. Gradients are reduce-scattered to the owner of each layer
/// (kfac::assign(), by the operations of newton_schulz()), which keeps the state of the layer and
/// updates it; the updated weights are all-gathered.
[[nodiscard]] DKFAC_API std::unique_ptr<Optimizer> make_muon(
    std::shared_ptr<comm::Communicator> comm, MuonOptions options, Device device = Device::cpu(),
    ContextOptions context = {});
/// Makes a K-FAC optimizer with SP-NGD's pipeline (algorithm 3). Statistics are reduce-scattered to
/// the owner of each layer, which damps and inverts them. Gradients are reduce-scattered to its
/// workers (the owner alone, unless grad_worker_fraction is larger), which precondition, keep
/// momentum or AdamW's moments, and update. Updated weights are all-gathered. docs/distribution.md
/// lists messages and bytes.
[[nodiscard]] DKFAC_API std::unique_ptr<Optimizer> make_kfac(
    std::shared_ptr<comm::Communicator> comm, KfacOptions options, Device device = Device::cpu(),
    ContextOptions context = {});

}  // namespace dkfac::optim
