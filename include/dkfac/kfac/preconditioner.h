#pragma once

#include <memory>
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

namespace dkfac::kfac {

/// Gradients of one layer, preconditioned in place: contiguous, row-major, f32 or f64, whatever
/// CurvatureOptions::dtype is, on the device of the Preconditioner. `weight` has the shape of the
/// weight (weight_shape(): [out,in], [out,kh,kw,in], ...); a convolution's may also be [out,
/// kh*kw*in], and any may be a vector, of the same elements in the same order. Another shape of as
/// many elements, as that of a transposed matrix, is refused. `bias` is [out], or empty for a layer
/// without one. A BatchNorm has gamma in `weight` and beta in `bias`, [channels] each. A PlainSpec
/// takes any shape.
struct DKFAC_API LayerGrad {
  LayerId layer{};
  TensorView weight;
  TensorView bias;
};

/// K-FAC on somebody else's training loop. It borrows pointers, never owns parameters, never sees a
/// network type, never prints.
///
/// Every iteration, per layer: record_input() in the forward pass and record_grad_output() in the
/// backward pass (record_normalization() for a normalisation); then, with gradients already
/// averaged over ranks, step(). The update rule stays the caller's.
///
/// Views and streams are of the object's device. Each call uses the caller's memory in the order of
/// its stream: on the host it is the caller's again when the call returns; on a CUDA device, where
/// the object works on a stream of its own that follows the caller's, for whatever the caller puts
/// on that stream afterwards. With StatisticsOptions::records_valid_until_step what was recorded
/// has to stay as it is until step() has been called. No view is kept: layers that are recorded may
/// lie elsewhere in each step.
///
/// A call that throws InvalidArgument or DeviceError has found the caller's mistake on this rank
/// alone, so that the others meet a CommError where they wait for it. A record may send what is
/// complete, and throws CommError when that fails, as prepare() and step() do.
///
/// The host waits once per step, for the vote;
/// with grad_worker_fraction above 1/P up to twice more in steps that rebuild, with EKFAC once; up
/// to twice where a layer has no inverse yet, as in the first step; where an inverse failed, or an
/// f16 operand has no range yet; in rebuilds of eigenvectors, where cusolverDnXsyevd may block; and
/// where the communicator does. With StatisticsOptions::micro_batches > 1 that many records of a
/// layer add up.
class DKFAC_API Preconditioner {
 public:
  explicit Preconditioner(std::shared_ptr<comm::Communicator> comm, CurvatureOptions options = {},
                          Device device = Device::cpu(), ContextOptions context = {});
  ~Preconditioner();
  Preconditioner(const Preconditioner&) = delete;
  Preconditioner& operator=(const Preconditioner&) = delete;
  Preconditioner(Preconditioner&&) noexcept;
  Preconditioner& operator=(Preconditioner&&) noexcept;

  /// The layer that records and gradients name, numbered from 0; before prepare(). Throws
  /// InvalidArgument for an empty name or one that exists, and for a spec that makes no sense.
  [[nodiscard]] LayerId add_layer(std::string name, LayerSpec spec);
  /// Fixes the layers and who owns them; throws InvalidArgument when ranks disagree about them. A
  /// collective; called by the first record or step when the caller has not.
  void prepare();

  /// False on steps whose statistics are not used, so that a caller can skip the records.
  [[nodiscard]] bool wants_statistics() const;
  /// The same for one layer and record: under the adaptive rule each statistic has its own steps.
  [[nodiscard]] bool wants_input(LayerId layer) const;
  [[nodiscard]] bool wants_grad_output(LayerId layer) const;  ///< And for record_normalization().
  /// input: what the layer was applied to, f64, f32, bf16 or f16; it is only read. Of a LinearSpec
  /// [n,in], row-major, where rows may have gaps, or contiguous [n,...,in]; of a Conv2dSpec
  /// contiguous [n,h,w,in] or [n,in,h,w], as its layout says; of an EmbeddingSpec i32 indices
  /// [n,...] in [0, vocabulary), contiguous; on a device one outside makes the step a rejected one.
  ///
  /// In a step the inputs and the output gradients of a layer are of the same samples and
  /// positions, in whatever order and parts. n may be 0 where other ranks or records have samples
  /// and RecordScale::global_batch counts them. Ignored, the view unchecked, where wants_input() is
  /// false and for a PlainSpec. Throws InvalidArgument for a layer that does not exist or is a
  /// normalisation, for views and streams that are not as said, a scale out of range, and more
  /// records than micro_batches; it has recorded nothing then.
  void record_input(LayerId layer, ConstTensorView input, Stream stream = Stream::cpu(),
                    RecordScale scale = {});
  /// grad_output: d loss / d output of the layer, in the reduction of CurvatureOptions, with
  /// RecordScale::loss_scale still in it. As `input` above, with `out` in the place of `in`:
  /// [n,out], [n,...,out], [n,h,w,out] or [n,out,h,w] with the output's h and w. Gradients of the
  /// training loss give the empirical Fisher.
  void record_grad_output(LayerId layer, ConstTensorView grad_output, Stream stream = Stream::cpu(),
                          RecordScale scale = {});
  /// x: input of the normalisation, contiguous: [n,c], [n,h,w,c] (nhwc) or [n,c,h,w] (nchw), with
  /// NormOver::channels [n,...,c]. grad_output: of the same shape and dtype, contiguous. mean,
  /// inv_std: what x was normalised by, of one shape and any strides: [c] of the batch, or
  /// [groups,c] of ghost groups of consecutive samples, whose number divides n; with
  /// NormOver::channels [rows], one for each sample and position. All are f64, f32, bf16 or f16 and
  /// only read. Ignored where wants_grad_output() is false. Errors as of record_input(), for a
  /// layer that is no normalisation too.
  void record_normalization(LayerId layer, ConstTensorView x, ConstTensorView mean,
                            ConstTensorView inv_std, ConstTensorView grad_output,
                            Stream stream = Stream::cpu(), RecordScale scale = {});

  /// Preconditions `grads` in place, equal on all ranks: each layer with curvature once, in any
  /// order; others may be there and stay as they are. Where report.updated is false they are
  /// left as they are: skip the update. Either the vote has failed, and no statistic has been
  /// touched, or no layer has an inverse. Where only some have none (report.without_inverse), the
  /// gradients of these stay. Throws NumericError on every rank once a factor has failed more than
  /// max_failed_refreshes times. args.lr is only read by the KL clip, which needs one > 0;
  /// args.flags.loss, f64[1] on the object's device, is read as the gradients are. Throws
  /// InvalidArgument for gradients that are missing, twice there or not as LayerGrad says, and for
  /// layers that were not recorded where wants_input() and wants_grad_output() said so (unless this
  /// rank's vote rejects the step); DeviceError for gradients on another device.
  StepReport step(std::span<const LayerGrad> grads, Stream stream = Stream::cpu(),
                  const StepArgs& args = {});

  /// Copies of what this rank holds of a layer's curvature, as the last step has left it: all of it
  /// on the owner, inverses on the other workers, nothing elsewhere. After prepare(), at any time
  /// but during a call; not a collective; changes nothing. Waits for the device. There an inverse
  /// that the last step could not rebuild is still the one before it.
  [[nodiscard]] LayerFactors read_factors(LayerId layer);

  void set_damping(double damping);
  /// As in Optimizer.
  void set_curvature(const CurvatureSettings& settings);
  /// As in Optimizer; prepares when the caller has not. The visitor is shown contiguous host
  /// memory, which it may read and write until its call returns. Options are no part of the state:
  /// set a damping that has been changed before loading.
  void visit_state(StateVisitor& visitor);
  [[nodiscard]] const CurvatureOptions& options() const;
  /// Layers, owners, bytes, why a layer is not covered; after prepare().
  [[nodiscard]] std::string describe() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dkfac::kfac
