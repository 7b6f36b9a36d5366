/* C interface of dkfac: communicators, the K-FAC preconditioner and the optimizers, for programs in
 * C and for bindings of other languages. C99; needs no other header of dkfac. It is part of
 * libdkfac.so.
 *
 * Conventions
 * - Every function that can fail returns a dkfac_status. On failure dkfac_last_error() has the
 * message; outputs are unchanged. No C++ exception leaves a function. A null pointer where an
 * object is required is DKFAC_INVALID_ARGUMENT.
 * - Handles are opaque. A *_destroy() accepts null. A handle is used by one thread at a time.
 * - Structs of options begin with `struct_size`: call the struct's *_init() first, which sets the
 * defaults, then change fields. A library newer than the program's header leaves the fields that
 * the program does not know at their defaults; one that is older refuses the struct. A report has
 * no such function: set its `struct_size` before the call. A newer library leaves out what the
 * program does not know; an older one refuses the report.
 * - Flags are int32_t, 0 or 1. Enumerations are passed as int32_t; a value that is not listed is
 *   DKFAC_INVALID_ARGUMENT.
 * - Ranks: functions marked "collective" are called by every rank of the communicator, in the same
 * order. A rank that cannot go on calls dkfac_comm_abort() before it ends, so that the others do
 * not wait for it.
 */
#pragma once

#include "dkfac/c/types.h"

#ifdef __cplusplus
extern "C" {
#endif

#define DKFAC_C_API __attribute__((visibility("default")))

/* --- status and version ---------------------------------------------------------------------- */

/* Message of the last failure of this thread, "[operation] what was wrong; what to do". Valid until
 * the next failing call of the thread; "" if there was none. */
DKFAC_C_API const char* dkfac_last_error(void);
/* Sets the text that explains the failure of a callback, which is called on this thread. */
DKFAC_C_API void dkfac_set_callback_error(const char* message);

DKFAC_C_API const char* dkfac_version(void); /* "0.1.0" */
DKFAC_C_API int32_t dkfac_c_abi(void);
/* Backends, libraries and devices of this build and machine, one "name: value" per line. */
DKFAC_C_API const char* dkfac_build_info(void);

/* --- communicators --------------------------------------------------------------------------- */

DKFAC_C_API void dkfac_comm_options_init(dkfac_comm_options* options, size_t struct_size);

/* Make a communicator of one rank; of `size` processes over TCP, where rank 0 listens at host:port
 * (collective; dkfac/comm/tcp.h has what a secret protects); of the world of the launcher
 * (torchrun, mpirun, srun; one rank without a launcher). `options` may be null. */
DKFAC_C_API int dkfac_comm_self(const dkfac_comm_options* options, dkfac_comm** out);
DKFAC_C_API int dkfac_comm_tcp(int32_t rank, int32_t size, const char* host, uint16_t port,
                               const dkfac_comm_options* options, dkfac_comm** out);
DKFAC_C_API int dkfac_comm_world(const dkfac_comm_options* options, dkfac_comm** out);

DKFAC_C_API int dkfac_comm_from_callbacks(int32_t rank, int32_t size,
                                          const dkfac_comm_callbacks* callbacks,
                                          const dkfac_comm_options* options, dkfac_comm** out);
/* Makes a communicator for memory of `device` over `host`, which is not used directly from then on:
 * NCCL where every rank has its own GPU and the builds have it, else staged through host memory.
 * Collective. Not in C: DeviceComm and NcclOptions, whose defaults hold. */
DKFAC_C_API int dkfac_comm_on_device(dkfac_comm* host, dkfac_device device, dkfac_comm** out);
/* Reduces `tensor` over ranks, in place on every rank; collective. It is contiguous, has as many
 * elements of the same dtype on all ranks, lies on a device of the communicator, and is used in the
 * order of its stream. `op` is a dkfac_reduce_op; the maximum is for f64 and f32, and NaN where a
 * rank has a NaN.
 * Gradients for dkfac_preconditioner_step() are reduced after the last record of the step, since
 * records launch collectives of `comm`, too. A rank that leaves out records launches these later
 * than the others, which is an error: set overlap 0 where that may happen. All else is reduced
 * between two steps of the objects that use `comm`.
 * Not in C: the other collectives, and groups of ranks. */
DKFAC_C_API int dkfac_comm_all_reduce(dkfac_comm* comm, const dkfac_tensor* tensor, int32_t op);
/* Makes pending and later calls fail on every rank with DKFAC_COMM_ERROR and a message that names
 * this rank and the reason; null: "no reason was given". Not collective: it does not wait. Without
 * it, the peers of a rank that ends by an error may wait until their time limit, as they do under
 * MPI. There the process has to end with an exit code other than 0, since MPI is not finalised.
 * Over callbacks it calls their `abort`; where that is null, the calls of this rank alone fail. */
DKFAC_C_API int dkfac_comm_abort(dkfac_comm* comm, const char* reason);
/* Objects made from a communicator keep it alive: it may be destroyed before them. */
DKFAC_C_API void dkfac_comm_destroy(dkfac_comm* comm);
DKFAC_C_API int32_t dkfac_comm_rank(const dkfac_comm* comm); /* -1 for null */
DKFAC_C_API int32_t dkfac_comm_size(const dkfac_comm* comm);
DKFAC_C_API const char* dkfac_comm_backend(
    const dkfac_comm* comm); /* "self", "tcp", "external", ... */
/* Whether this build has libcrypto, without which a secret is an error. */
DKFAC_C_API int32_t dkfac_comm_can_use_secrets(void);
/* One sentence for users on rank 0 where ranks are on several machines and connected over TCP
 * without a secret; else "". Valid as long as `comm`. */
DKFAC_C_API const char* dkfac_comm_warning(const dkfac_comm* comm);

/* --- layers ---------------------------------------------------------------------------------- */

DKFAC_C_API void dkfac_layer_spec_init(dkfac_layer_spec* spec, size_t struct_size, int32_t kind);

/* --- options --------------------------------------------------------------------------------- */

DKFAC_C_API void dkfac_curvature_options_init(dkfac_curvature_options* options, size_t struct_size);

DKFAC_C_API void dkfac_context_options_init(dkfac_context_options* options, size_t struct_size);

/* --- arguments and report of a step ---------------------------------------------------------- */

DKFAC_C_API void dkfac_step_args_init(dkfac_step_args* args, size_t struct_size);

DKFAC_C_API void dkfac_curvature_settings_init(dkfac_curvature_settings* settings,
                                               size_t struct_size);

/* --- state and factors ----------------------------------------------------------------------- */

/* Host tensor, valid while `factors` exists; without data where this rank does not hold it. */
DKFAC_C_API int dkfac_factors_get(const dkfac_factors* factors, int32_t which, dkfac_tensor* out);
DKFAC_C_API int32_t dkfac_factors_owner(const dkfac_factors* factors); /* -1: no curvature. */
DKFAC_C_API void dkfac_factors_destroy(dkfac_factors* factors);

/* --- preconditioner -------------------------------------------------------------------------- */

/* `options` and `context` may be null. */
DKFAC_C_API int dkfac_preconditioner_create(dkfac_comm* comm,
                                            const dkfac_curvature_options* options,
                                            const dkfac_context_options* context,
                                            dkfac_preconditioner** out);
DKFAC_C_API void dkfac_preconditioner_destroy(dkfac_preconditioner* object);
/* Adds a layer before the first record; `layer` becomes its number, counted from 0. */
DKFAC_C_API int dkfac_preconditioner_add_layer(dkfac_preconditioner* object, const char* name,
                                               const dkfac_layer_spec* spec, int32_t* layer);
/* Leaves the direction of a layer to its workers, before dkfac_preconditioner_prepare() and alike
 * on all ranks: the gradient of the layer is preconditioned there alone; other ranks, where it is
 * neither read nor changed, may leave it out. */
DKFAC_C_API int dkfac_preconditioner_keep_direction(dkfac_preconditioner* object, int32_t layer);
/* Fixes the layers; collective. Called by the first record or step if the caller has not. */
DKFAC_C_API int dkfac_preconditioner_prepare(dkfac_preconditioner* object);
/* Whether this step uses records at all (layer < 0), or the input or output gradient of one layer.
 */
DKFAC_C_API int dkfac_preconditioner_wants_input(const dkfac_preconditioner* object, int32_t layer,
                                                 int32_t* wants);
DKFAC_C_API int dkfac_preconditioner_wants_grad_output(const dkfac_preconditioner* object,
                                                       int32_t layer, int32_t* wants);
/* Record a layer's input, or the gradient of its output. `scale` may be null. Rows of a matrix may
 * have gaps; other tensors are contiguous. Of an Embedding, indices or diagonals: compute_a(). */
DKFAC_C_API int dkfac_preconditioner_record_input(dkfac_preconditioner* object, int32_t layer,
                                                  const dkfac_tensor* input,
                                                  const dkfac_record_scale* scale);
DKFAC_C_API int dkfac_preconditioner_record_grad_output(dkfac_preconditioner* object, int32_t layer,
                                                        const dkfac_tensor* grad_output,
                                                        const dkfac_record_scale* scale);
/* Records a normalisation: x and grad_output of one shape and dtype, and the mean and 1/deviation
 * that normalised x. */
DKFAC_C_API int dkfac_preconditioner_record_normalization(
    dkfac_preconditioner* object, int32_t layer, const dkfac_tensor* x, const dkfac_tensor* mean,
    const dkfac_tensor* inv_std, const dkfac_tensor* grad_output, const dkfac_record_scale* scale);
/* In place of dkfac_preconditioner_record_normalization(), by the gradients of each sample: f64 or
 * f32, contiguous [n,2,c], or [groups,n/groups,2,c]; [i,0] is the gradient of the scale, [i,1] that
 * of the shift. */
DKFAC_C_API int dkfac_preconditioner_record_sample_gradients(dkfac_preconditioner* object,
                                                             int32_t layer,
                                                             const dkfac_tensor* gradients,
                                                             const dkfac_record_scale* scale);
/* Preconditions `grads` in place; collective. `args` and `report` may be null. A rank that rejects
 * the step (flags of `args`) may pass no gradients; a step with count 0 that every rank rejects
 * drops the records made so far. */
DKFAC_C_API int dkfac_preconditioner_step(dkfac_preconditioner* object,
                                          const dkfac_layer_grad* grads, int64_t count,
                                          const dkfac_step_args* args, dkfac_step_report* report);
/* Sets the rates of a layer's weight and bias for the KL clip, as multiples of dkfac_step_args::lr,
 * until they are set again; 1 each before. */
DKFAC_C_API int dkfac_preconditioner_set_rates(dkfac_preconditioner* object, int32_t layer,
                                               double weight_lr, double bias_lr);
DKFAC_C_API int dkfac_preconditioner_set_curvature(dkfac_preconditioner* object,
                                                   const dkfac_curvature_settings* settings);
DKFAC_C_API int dkfac_preconditioner_read_factors(dkfac_preconditioner* object, int32_t layer,
                                                  dkfac_factors** out);
/* Visits the state, to save or to load it, between two steps; drops the records made since the last
 * one, which all ranks have to have made alike. Collective where dkfac_preconditioner_prepare() has
 * not been called: it then fixes the layers first. */
DKFAC_C_API int dkfac_preconditioner_visit_state(dkfac_preconditioner* object,
                                                 const dkfac_state_visitor* visitor);
/* Table of layers, owners and bytes; valid until the next call with this object. */
DKFAC_C_API int dkfac_preconditioner_describe(const dkfac_preconditioner* object,
                                              const char** text);
/* A sentence where steps are predicted to take very long, and one where BLAS computes with kernels
 * of older processors, each with what to do, else ""; after prepare, valid as above. */
DKFAC_C_API int dkfac_preconditioner_notice(const dkfac_preconditioner* object, const char** text);

/* --- optimizers ------------------------------------------------------------------------------ */

DKFAC_C_API void dkfac_optimizer_options_init(dkfac_optimizer_options* options, size_t struct_size,
                                              int32_t kind);

DKFAC_C_API void dkfac_layer_params_init(dkfac_layer_params* params, size_t struct_size);

/* `curvature` is for DKFAC_KFAC, null: its defaults; `context` may be null. */
DKFAC_C_API int dkfac_optimizer_create(dkfac_comm* comm, const dkfac_optimizer_options* options,
                                       const dkfac_curvature_options* curvature,
                                       const dkfac_context_options* context, dkfac_optimizer** out);
DKFAC_C_API void dkfac_optimizer_destroy(dkfac_optimizer* object);
DKFAC_C_API int dkfac_optimizer_add_layer(dkfac_optimizer* object, const char* name,
                                          const dkfac_layer_spec* spec,
                                          const dkfac_layer_params* params, int32_t* layer);
/* Fixes the layers and broadcasts the parameters of rank 0; collective; before the first record. */
DKFAC_C_API int dkfac_optimizer_prepare(dkfac_optimizer* object);
DKFAC_C_API int dkfac_optimizer_wants_input(const dkfac_optimizer* object, int32_t layer,
                                            int32_t* wants);
DKFAC_C_API int dkfac_optimizer_wants_grad_output(const dkfac_optimizer* object, int32_t layer,
                                                  int32_t* wants);
DKFAC_C_API int dkfac_optimizer_record_input(dkfac_optimizer* object, int32_t layer,
                                             const dkfac_tensor* input,
                                             const dkfac_record_scale* scale);
DKFAC_C_API int dkfac_optimizer_record_grad_output(dkfac_optimizer* object, int32_t layer,
                                                   const dkfac_tensor* grad_output,
                                                   const dkfac_record_scale* scale);
DKFAC_C_API int dkfac_optimizer_record_normalization(
    dkfac_optimizer* object, int32_t layer, const dkfac_tensor* x, const dkfac_tensor* mean,
    const dkfac_tensor* inv_std, const dkfac_tensor* grad_output, const dkfac_record_scale* scale);
/* First-order methods ignore it, as they do the other records. */
DKFAC_C_API int dkfac_optimizer_record_sample_gradients(dkfac_optimizer* object, int32_t layer,
                                                        const dkfac_tensor* gradients,
                                                        const dkfac_record_scale* scale);
/* Announces that the gradients of a layer are final; in the same order on every rank. `stream`: the
 * CUstream_st on which they were written, null on the host. */
DKFAC_C_API int dkfac_optimizer_grads_ready(dkfac_optimizer* object, int32_t layer, void* stream,
                                            const dkfac_record_scale* scale);
/* Updates the parameters; collective. args->lr is required; `report` may be null. */
DKFAC_C_API int dkfac_optimizer_step(dkfac_optimizer* object, const dkfac_step_args* args,
                                     void* stream, dkfac_step_report* report);
DKFAC_C_API int dkfac_optimizer_set_curvature(dkfac_optimizer* object,
                                              const dkfac_curvature_settings* settings);
DKFAC_C_API int dkfac_optimizer_read_factors(dkfac_optimizer* object, int32_t layer,
                                             dkfac_factors** out);
/* As dkfac_preconditioner_visit_state(), after dkfac_optimizer_prepare(), which it requires; drops
 * announced gradients, too. */
DKFAC_C_API int dkfac_optimizer_visit_state(dkfac_optimizer* object,
                                            const dkfac_state_visitor* visitor);
DKFAC_C_API int dkfac_optimizer_describe(const dkfac_optimizer* object, const char** text);

#ifdef __cplusplus
}
#endif
