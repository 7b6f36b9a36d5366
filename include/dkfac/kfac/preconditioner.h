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

/// Gradients of one layer, preconditioned in place. Contiguous, row-major, f32 or f64 (independent
/// of CurvatureOptions::dtype), on the device of the Preconditioner.
/// - `weight` has the shape of the weight (weight_shape(): [out,in], [out,kh,kw,in], ...). A
///   convolution's may also be [out, kh*kw*in], and any may be a vector of the same elements in the
///   same order. A weight that is stored as [in, out] is passed as the transposed() view of it,
///   which costs two copies. Any other shape with as many elements is an error.
/// - `bias` is [out], or empty for a layer without one.
/// - A BatchNorm has gamma in `weight` and beta in `bias`, [channels] each. A PlainSpec accepts any
///   shape.
struct DKFAC_API LayerGrad {
  LayerId layer{};
  TensorView weight;
  TensorView bias;
};

/// K-FAC preconditioner for an existing training loop. It borrows pointers, owns no parameters,
/// depends on no network type and prints nothing. The update rule stays the caller's.
///
/// Every iteration, per layer: record_input() in the forward pass and record_grad_output() in the
/// backward pass (record_normalization() for a normalisation). Then step(), with gradients already
/// averaged over ranks. With StatisticsOptions::micro_batches > 1, that many records of a layer are
/// summed.
///
/// Views and streams are of the object's device. Each call accesses the caller's memory in the
/// order of the given stream. On the host, the caller may reuse the memory when the call returns.
/// On a CUDA device, the object works on its own stream, ordered with the caller's: work that the
/// caller enqueues on its stream after the call may reuse the memory. With
/// StatisticsOptions::records_valid_until_step, recorded memory must stay unchanged until step()
/// has been called. No view is kept: recorded tensors may lie elsewhere in each step.
///
/// InvalidArgument and DeviceError report a mistake of the caller on this rank alone; the other
/// ranks get a CommError where they wait for it. A record may launch a reduction that is complete,
/// and throws CommError when that fails, as do prepare() and step().
///
/// The host synchronizes once per step, to read the agreement on the step. It may wait longer:
/// - with grad_worker_fraction above 1/P, up to twice more in steps that rebuild (once with EKFAC);
/// - up to twice more where a layer has no inverse yet, as in the first step;
/// - where an inversion failed, or an f16 operand has no range yet;
/// - in rebuilds of eigenvectors, where cusolverDnXsyevd may block;
/// - where the communicator does.
class DKFAC_API Preconditioner {
 public:
  explicit Preconditioner(std::shared_ptr<comm::Communicator> comm, CurvatureOptions options = {},
                          Device device = Device::cpu(), ContextOptions context = {});
  ~Preconditioner();
  Preconditioner(const Preconditioner&) = delete;
  Preconditioner& operator=(const Preconditioner&) = delete;
  Preconditioner(Preconditioner&&) noexcept;
  Preconditioner& operator=(Preconditioner&&) noexcept;

  /// Adds a layer, before prepare(), and returns its id; ids count from 0. Throws InvalidArgument
  /// for an empty or duplicate name, and for an invalid spec.
  [[nodiscard]] LayerId add_layer(std::string name, LayerSpec spec);
  /// Leaves the direction of a layer to its workers (DistributionOptions::grad_worker_fraction):
  /// step() gathers nothing of it, and has no memory for it on other ranks. Those may leave out its
  /// gradient, which is neither read nor changed there. For callers that divide parameters over
  /// ranks and send each rank its part. Before prepare(), and alike on all ranks. Throws
  /// InvalidArgument for a layer that does not exist, and after prepare().
  void keep_direction(LayerId layer);
  /// Fixes the layers and assigns their owners; collective. Throws InvalidArgument when layers or
  /// options differ between ranks, and on every rank where some rank lacks the memory that
  /// statistics and inverses need at least: the machine's, or its control group's or device's.
  /// Called by the first record or step if the caller has not.
  void prepare();

  /// False on steps whose statistics are not used: the caller may skip the records.
  [[nodiscard]] bool wants_statistics() const;
  /// Whether this step uses the input of one layer: under the adaptive rule each statistic has its
  /// own steps.
  [[nodiscard]] bool wants_input(LayerId layer) const;
  [[nodiscard]] bool wants_grad_output(LayerId layer) const;  ///< Also for record_normalization().
  /// Records the input of the layer, x of its specification (layer_spec.h), which is only read:
  /// f64, f32, bf16 or f16, the indices of an Embedding i32 (or diagonals, see compute_a()). It is
  /// contiguous, but rows of a Linear's [n,in] may have gaps. An index out of range throws on the
  /// host; on a device it causes the step to be rejected.
  ///
  /// Within a step, the inputs and the output gradients of a layer must be of the same samples and
  /// positions (diagonals: samples), in any order and split; with InverseMethod::ekfac each input
  /// is followed by the output gradient of the same batch. An n of 0 is valid where other ranks or
  /// records have samples and RecordScale::global_batch counts them.
  ///
  /// Where wants_input() is false, and for a PlainSpec, the call is ignored and the view is not
  /// checked. Throws InvalidArgument for a layer that does not exist or is a normalisation, for
  /// views and streams other than described, for a scale out of range, and for more records than
  /// micro_batches. Nothing is recorded then.
  void record_input(LayerId layer, ConstTensorView input, Stream stream = Stream::cpu(),
                    RecordScale scale = {});
  /// Records grad_output = d loss / d output of the layer, in the reduction of CurvatureOptions,
  /// with RecordScale::loss_scale still applied. Dtypes, layouts and errors are those of
  /// record_input() with `out` for `in`: [n,out], [n,...,out], [n,h,w,out] or [n,out,h,w] with the
  /// output's h and w. Gradients of the training loss give the empirical Fisher.
  void record_grad_output(LayerId layer, ConstTensorView grad_output, Stream stream = Stream::cpu(),
                          RecordScale scale = {});
  /// Records a normalisation. All views are f64, f32, bf16 or f16 and only read.
  /// - x: input, contiguous: [n,c], [n,h,w,c] (nhwc) or [n,c,h,w] (nchw); with NormOver::channels
  ///   [n,...,c].
  /// - grad_output: contiguous, of the shape and dtype of x.
  /// - mean, inv_std: what x was normalised by, of one shape and any strides: [c] of the batch, or
  ///   [groups,c] for ghost groups of consecutive samples, whose number divides n; with
  ///   NormOver::channels [rows], one for each sample and position.
  ///
  /// Ignored where wants_grad_output() is false. Errors as of record_input(), also for a layer that
  /// is not a normalisation.
  void record_normalization(LayerId layer, ConstTensorView x, ConstTensorView mean,
                            ConstTensorView inv_std, ConstTensorView grad_output,
                            Stream stream = Stream::cpu(), RecordScale scale = {});
  /// Records a normalisation by the gradients of each sample, which a backward pass may have summed
  /// for its own: in place of record_normalization(), whose pass over x and grad_output it saves.
  /// gradients: f64 or f32, contiguous [n,2,c], or [groups,n/groups,2,c] with ghost groups; [i,0]
  /// is the sum over the positions of sample i of grad_output * (x - mean) * inv_std, the gradient
  /// of the scale, and [i,1] that of grad_output, the gradient of the shift. Row 0 is not used
  /// where NormSpec::scale is false. Scale and reduction are those of grad_output, and
  /// StatisticsOptions::fraction chooses the same samples. Ignored and errors as there.
  void record_sample_gradients(LayerId layer, ConstTensorView gradients,
                               Stream stream = Stream::cpu(), RecordScale scale = {});

  /// Preconditions `grads` in place. They are the final gradients of the step: reduced over ranks
  /// by the caller (as by DDP, to the mean over the global batch), summed over micro-batches,
  /// without a loss scale, and equal on all ranks. Every layer with curvature appears once, in any
  /// order; other layers may be included and are left unchanged. A rank whose flags reject the step
  /// may leave out gradients. A step without gradients that every rank rejects drops the records
  /// made so far.
  ///
  /// Where report.updated is false, `grads` are unchanged and the caller skips the update. Either
  /// the ranks agreed to reject the step, and no statistic was changed, or no layer has an inverse.
  /// Where only some layers have none (report.without_inverse), only their gradients stay
  /// unchanged.
  ///
  /// args.lr is read by the KL clip alone, which needs it > 0; set_rates() where parameters have
  /// rates of their own. args.flags.loss, f64[1] on the
  /// object's device, is read in the order of `stream`, as the gradients are.
  ///
  /// Throws NumericError on every rank once a factor has failed more than max_failed_refreshes
  /// times. The records of the step are then dropped, and nothing else is changed: to go on, change
  /// the damping after failed inversions, or load an earlier state by visit_state(). The same holds
  /// for the InvalidArgument on every rank where none has a sample, after which the next step may
  /// have some, and for that where gradients are not equal on all ranks. They are compared in the
  /// first update, by some elements of four layers (in later ones while those are all zero). Throws
  /// InvalidArgument for gradients that are missing, given twice or not as LayerGrad describes, and
  /// for layers without a record that wants_input() or wants_grad_output() requested (unless this
  /// rank's flags reject the step). Throws DeviceError for gradients on another device.
  StepReport step(std::span<const LayerGrad> grads, Stream stream = Stream::cpu(),
                  const StepArgs& args = {});

  /// Counts seconds to what K-FAC adds to a step (StepReport::overhead), which are otherwise taken
  /// for those of the passes: what the caller does for this object, e.g. in hooks of the passes,
  /// between the last step() and the coming one, without calls of this object. Of processor time
  /// of the process on the host, of time on a device. Throws InvalidArgument unless they are
  /// finite and >= 0.
  void count_own(double seconds);

  /// Returns copies of what this rank holds of a layer's curvature after the last step: everything
  /// on the owner, inverses on the other workers, nothing elsewhere. After prepare() and not during
  /// another call; not a collective; changes nothing. Waits for the device, where an inverse whose
  /// rebuild failed in the last step is still the previous one.
  [[nodiscard]] LayerFactors read_factors(LayerId layer);

  /// Sets the rates at which the caller updates weight and bias of a layer, as multiples of
  /// StepArgs::lr, for the KL clip of the coming steps; 1 each by default, 0 where a parameter is
  /// not updated. Equal on all ranks; between two steps. Not part of the state. Throws
  /// InvalidArgument for a layer that does not exist, and for a multiple that is negative or not
  /// finite.
  void set_rates(LayerId layer, double weight_lr, double bias_lr);
  /// As set_curvature() with the damping alone.
  void set_damping(double damping);
  /// As Optimizer::set_curvature().
  void set_curvature(const CurvatureSettings& settings);
  /// As Optimizer::visit_state(); calls prepare() if the caller has not. The visitor gets
  /// contiguous host memory, which it may read and write until its call returns. Options are not
  /// part of the state: set a damping that was changed before loading.
  void visit_state(StateVisitor& visitor);
  [[nodiscard]] const CurvatureOptions& options() const;
  /// A table of layers, owners and bytes, with the reason why a layer has no curvature, and where
  /// rebuilds are long the sentence of notice(); after prepare().
  [[nodiscard]] std::string describe() const;
  /// What makes steps slow and can be changed, a sentence each, else empty: where those that
  /// rebuild inverses, as the first one, are predicted to take more than 2 seconds, the layer that
  /// takes most of it, equal on all ranks; and on the CPU BackendInfo::warning. After prepare().
  [[nodiscard]] std::string notice() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace dkfac::kfac
