#pragma once

#include <memory>
#include <optional>
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

/// Parameters and gradients of one layer, borrowed from add_layer() until the optimizer ends:
/// contiguous, row-major, one dtype for all layers (f32 or f64), on the device of the optimizer, in
/// the shapes of LayerGrad (preconditioner.h). prepare() and step() write parameters, which nobody
/// else may write from prepare() on but between two steps; grads_ready() reads gradients, and
/// nothing here writes them. A BatchNorm has gamma as weight and beta as bias. Views of what the
/// spec lacks stay empty.
struct DKFAC_API LayerParams {
  TensorView weight = {}, bias = {};
  TensorView weight_grad = {}, bias_grad = {};
  double weight_lr = 1, bias_lr = 1;  ///< Multiply the learning rate of the parameter; >= 0.
  double bias_decay = 0;  ///< Weight decay of the bias in multiples of the option's; >= 0.
};

/// A whole distributed update: local gradients go in, updated parameters come out, the same bits on
/// every rank. SGD, LARS, AdamW and K-FAC implement it.
///
/// add_layer() in forward order, prepare(), then per iteration: record_* where wants_statistics(),
/// grads_ready() for every layer as backward fills its gradients (in the same order on every rank),
/// step(). Gradients are those of this rank's loss, in the reduction of the options; the optimizer
/// averages or sums them over ranks in buckets that leave while backward still runs. Gradient
/// buffers may be overwritten once grads_ready() has returned.
///
/// On a CUDA device everything is ordered on the streams that are passed: what they hold before a
/// call is seen by it, what they are given afterwards follows it, gradients that are overwritten
/// and parameters that are read included. The host waits for the device once per step, for the
/// vote; K-FAC may wait more where Preconditioner does.
class DKFAC_API Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  [[nodiscard]] virtual std::string_view name() const = 0;  ///< "sgd", "lars", "adamw", "kfac"
  /// The layer that the other calls name, numbered from 0; before prepare(). Throws InvalidArgument
  /// for a name that is empty or exists, a spec that makes no sense, views that do not fit it or
  /// the dtype of the layers before, and multipliers out of range; DeviceError for views on another
  /// device.
  [[nodiscard]] virtual LayerId add_layer(std::string name, LayerSpec spec, LayerParams params) = 0;
  /// Fixes layers, owners and buckets; collective. Broadcasts parameters from rank 0, so that all
  /// ranks start from the same bits; on a device they must be there, and are when it returns.
  /// Throws InvalidArgument when ranks disagree about layers or options.
  virtual void prepare() = 0;

  /// Statistics; ignored by first-order methods. Views, scales, lifetimes and errors are those of
  /// Preconditioner (preconditioner.h), which has the same calls; here prepare() comes first.
  [[nodiscard]] virtual bool wants_statistics() const { return false; }
  [[nodiscard]] virtual bool wants_input(LayerId) const { return wants_statistics(); }
  [[nodiscard]] virtual bool wants_grad_output(LayerId) const { return wants_statistics(); }
  /// Damping, intervals and micro-batches from the coming step on, before its first record; no-op
  /// for first-order methods. Options are no part of the state: after visit_state() they are the
  /// last ones set.
  virtual void set_curvature(const kfac::CurvatureSettings&) {}
  virtual void record_input(LayerId, ConstTensorView, Stream, RecordScale) {}
  virtual void record_grad_output(LayerId, ConstTensorView, Stream, RecordScale) {}
  virtual void record_normalization(LayerId, ConstTensorView /*x*/, ConstTensorView /*mean*/,
                                    ConstTensorView /*inv_std*/, ConstTensorView /*grad_output*/,
                                    Stream, RecordScale) {}

  /// The gradients of `layer`, in the views of add_layer(), are final: they are read in the order
  /// of `stream`, on the host before this returns, and may be overwritten afterwards. loss_scale
  /// and global batch as for the records. Throws InvalidArgument for a layer that does not exist or
  /// was announced in this step, and for a stream of another device; CommError when what it sends
  /// fails.
  virtual void grads_ready(LayerId layer, Stream stream, RecordScale scale) = 0;
  /// Waits for the reductions, takes the vote, updates. On the host parameters are new when this
  /// returns; on a CUDA device for whatever follows on `stream`. args.flags.loss, f64[1] on the
  /// device of the optimizer, is read before that. Throws InvalidArgument where gradients of a
  /// layer were not announced or statistics that are wanted were not recorded (unless this rank's
  /// vote rejects the step), and for arguments out of range; CommError; NumericError on every rank
  /// once a factor has failed too often.
  virtual kfac::StepReport step(const StepArgs& args, Stream stream) = 0;

  /// The curvature of a layer; nothing of first-order methods. As in Preconditioner.
  [[nodiscard]] virtual kfac::LayerFactors read_factors(LayerId) { return {}; }

  /// Everything beside parameters and options that decides the steps to come, after prepare() and
  /// between two steps. With the parameters restored as well, a visitor that writes back what
  /// another one has read makes the optimizer go on with the same bits; with another number of
  /// ranks as StateVisitor says. What was announced of a step is dropped. The visitor is shown
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
  /// L2 term added to the averaged gradient of weights; never on gamma, and on biases (beta
  /// included) only as LayerParams::bias_decay says. >= 0.
  double weight_decay = 0;
  /// v <- m (lr/lr_old) v + lr g, w <- w - v: a buffer of lr*gradient is rescaled when lr changes
  /// (Goyal et al. 2017, section 3). Computed as the equal u <- m u + g, w <- w - lr u, which holds
  /// at lr = 0 too. False: v <- m v + lr g.
  bool momentum_correction = true;
  LossReduction loss_reduction = LossReduction::local_mean;
  CommunicationOptions communication = {};
  void validate() const;
};

/// LARS as in the MLPerf reference (docs/math.md, "LARS"): for weights
/// trust = eta*|w| / (|g| + wd*|w| + eps), 1 when a norm is zero; v <- m v - lr*trust*(g + wd*w);
/// w <- w + v. BatchNorm and biases: plain momentum, with the decay of LayerParams::bias_decay.
struct DKFAC_API LarsOptions {
  double momentum = 0.9;
  bool nesterov = false;
  double weight_decay = 1e-4;
  double eta = 1e-3;  ///< Trust coefficient, > 0.
  double epsilon = 0;
  LossReduction loss_reduction = LossReduction::local_mean;
  CommunicationOptions communication = {};
  void validate() const;
};

/// AdamW (Loshchilov and Hutter 2019, algorithm 2), with the learning rate in the decay, as PyTorch
/// has it: m <- beta1 m + (1 - beta1) g, v <- beta2 v + (1 - beta2) g^2,
/// w <- (1 - lr weight_decay) w - lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon) for
/// the t-th update from 1; a step that is skipped is none. StepArgs::momentum takes the place of
/// beta1; with a beta1 that changes, beta1^t is the product of those of all updates.
struct DKFAC_API AdamwOptions {
  double beta1 = 0.9, beta2 = 0.999;  ///< In [0, 1).
  double epsilon = 1e-8;              ///< > 0
  /// Of weights; never of gamma, and of biases (beta included) only as LayerParams::bias_decay
  /// says.
  /// >= 0.
  double weight_decay = 0.01;
  LossReduction loss_reduction = LossReduction::local_mean;
  CommunicationOptions communication = {};
  void validate() const;
};

enum class MomentumRule : std::uint8_t {
  constant,   ///< v <- m0 v - lr U.
  corrected,  ///< Published code: m = m0 * lr/lr_old when lr falls, else m0.
  paper       ///< SP-NGD eq. 22-23: m = (m0/lr0) * lr, and v = w(t) - w(t-1) after rescaling.
};

/// w <- sqrt(2 d_out) w / (|w| + 1e-9) for Linear and Conv2d weights after the update.
enum class Rescale : std::uint8_t {
  off,
  always,  ///< SP-NGD eq. 24.
  shrink   ///< Published code: only when the factor is below 1.
};

struct DKFAC_API KfacOptions {
  kfac::CurvatureOptions curvature = {};
  double momentum = 0.9;
  MomentumRule momentum_rule = MomentumRule::corrected;
  double initial_lr = 0;  ///< lr0 of the paper's momentum rule; needed (> 0) only for it.
  Rescale rescale = Rescale::off;
  /// Decoupled: added to the preconditioned gradient of weights, before momentum. >= 0.
  double weight_decay = 0;
  void validate() const;
};

/// Trust ratio of LARS for one weight (You et al. 2017, algorithm 1; docs/math.md, "LARS"):
/// eta*|w| / (|g| + weight_decay*|w| + epsilon), norms of Frobenius; 1 when a norm is zero
/// or NaN. Throws InvalidArgument for options out of range.
[[nodiscard]] DKFAC_API double lars_trust_ratio(const LarsOptions& options, double weight_norm,
                                                double gradient_norm);

/// What Rescale multiplies a weight w of d_out rows by after its update (Osawa et al. 2020, SP-NGD,
/// eq. 24): sqrt(2 d_out) / (|w| + 1e-9), norm of Frobenius; 1 with Rescale::off, and with
/// Rescale::shrink where it would not shrink the weight. Throws InvalidArgument for d_out < 1.
[[nodiscard]] DKFAC_API double weight_rescaling(Rescale rule, std::int64_t d_out,
                                                double weight_norm);

[[nodiscard]] DKFAC_API std::unique_ptr<Optimizer> make_sgd(
    std::shared_ptr<comm::Communicator> comm, SgdOptions options, Device device = Device::cpu(),
    ContextOptions context = {});
[[nodiscard]] DKFAC_API std::unique_ptr<Optimizer> make_lars(
    std::shared_ptr<comm::Communicator> comm, LarsOptions options, Device device = Device::cpu(),
    ContextOptions context = {});
[[nodiscard]] DKFAC_API std::unique_ptr<Optimizer> make_adamw(
    std::shared_ptr<comm::Communicator> comm, AdamwOptions options, Device device = Device::cpu(),
    ContextOptions context = {});
/// SP-NGD's pipeline (algorithm 3): statistics are reduce-scattered to the owner of each layer,
/// which damps and inverts; gradients to its workers (the owner alone, unless grad_worker_fraction
/// is larger), which precondition and apply momentum and rescaling; weights are all-gathered.
/// docs/distribution.md gives messages and bytes.
[[nodiscard]] DKFAC_API std::unique_ptr<Optimizer> make_kfac(
    std::shared_ptr<comm::Communicator> comm, KfacOptions options, Device device = Device::cpu(),
    ContextOptions context = {});

}  // namespace dkfac::optim
