/* Types of the C interface of dkfac (dkfac.h). */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* --- status and version ---------------------------------------------------------------------- */

/* Numbers of the exceptions of dkfac (docs/errors.md). */
typedef enum dkfac_status {
  DKFAC_OK = 0,
  DKFAC_INVALID_ARGUMENT =
      1,                   /* A mistake of the caller: a shape, a dtype, an option out of range. */
  DKFAC_MISSING_INPUT = 2, /* A file does not exist. */
  DKFAC_DATA_ERROR = 3,    /* A file, or a saved state, has invalid content. */
  DKFAC_IO_ERROR = 4,
  DKFAC_DEVICE_ERROR = 5,  /* CUDA failed, or the build has no backend for the device. */
  DKFAC_COMM_ERROR = 6,    /* A lost peer, a time limit, ranks that disagree. */
  DKFAC_NUMERIC_ERROR = 7, /* More numerical failures than max_failed_refreshes tolerates. */
  DKFAC_OUT_OF_MEMORY = 8,
  DKFAC_CALLBACK_FAILED = 9, /* Of a state visitor; a communicator's: 6. */
  DKFAC_INTERNAL = 10
} dkfac_status;

/* Version of this interface; it changes when a program has to be recompiled. */
#define DKFAC_C_ABI 1

/* --- tensors --------------------------------------------------------------------------------- */

typedef enum dkfac_dtype {
  DKFAC_F64 = 0,
  DKFAC_F32 = 1,
  DKFAC_BF16 = 2,
  DKFAC_F16 = 3,
  DKFAC_I32 = 4
} dkfac_dtype;
typedef enum dkfac_device_kind { DKFAC_CPU = 0, DKFAC_CUDA = 1 } dkfac_device_kind;
typedef struct dkfac_device {
  int32_t kind; /* dkfac_device_kind */
  int32_t index;
} dkfac_device;

#define DKFAC_MAX_DIMS 4

/* Memory of the caller; nothing is copied. `strides` are in elements, as in DLPack; null: row-major
 * without gaps. A tensor without data (data null, ndim 0) means "none". `stream`: the CUstream_st
 * on which the memory was written and will be used, where the device is CUDA; null is the legacy
 * default stream. All tensors of a call are of one stream. */
typedef struct dkfac_tensor {
  void* data;
  const int64_t* shape;
  const int64_t* strides;
  int32_t ndim;
  int32_t dtype; /* dkfac_dtype */
  dkfac_device device;
  void* stream;
} dkfac_tensor;

/* Host tensors without gaps, of a dkfac_dtype: [rows, columns] and [count]. For C99; the shape
 * lives as long as the enclosing block. */
#define dkfac_matrix(data, dtype, rows, columns) \
  ((dkfac_tensor){                               \
      (data), (const int64_t[2]){(rows), (columns)}, NULL, 2, (dtype), {DKFAC_CPU, 0}, NULL})
#define dkfac_vector(data, dtype, count) \
  ((dkfac_tensor){(data), (const int64_t[1]){(count)}, NULL, 1, (dtype), {DKFAC_CPU, 0}, NULL})

/* --- communicators --------------------------------------------------------------------------- */

typedef struct dkfac_comm dkfac_comm;

typedef enum dkfac_reduce_op { DKFAC_REDUCE_SUM = 0, DKFAC_REDUCE_MAX = 1 } dkfac_reduce_op;

typedef struct dkfac_comm_options {
  size_t struct_size;
  double timeout_s;       /* Of a collective, > 0; default 120. Callbacks keep their own limits. */
  int32_t check_calls;    /* 1: compare each collective over the ranks before it runs. Default 0. */
  int64_t piece_bytes;    /* Long buffers are transferred in pieces of this size; default 1 MiB. */
  const char* secret;     /* Over TCP; null: that of DKFAC_SECRET or DKFAC_SECRET_FILE, or none. */
  int32_t require_secret; /* 1: no connection to another rank without one. Default 0. */
} dkfac_comm_options;
/* Collectives of the caller's framework, over host memory. Each blocks until its result is complete
 * and returns 0, or another value after dkfac_set_callback_error(); the communicator then fails for
 * good. They are called from the threads that call dkfac, in the same order on every rank. `user`
 * is the field of the struct. */
typedef struct dkfac_comm_callbacks {
  size_t struct_size;
  void* user;
  /* data[count], f64 or f32, becomes the sum over ranks, or the maximum if `maximum`, which
   * is NaN where a rank has a NaN. Every rank must get the same bits. */
  int (*all_reduce)(void* user, void* data, int64_t count, int32_t dtype, int32_t maximum);
  /* out[size * bytes]: block r becomes in[bytes] of rank r; `bytes` is equal on all ranks. */
  int (*all_gather)(void* user, const void* in, void* out, int64_t bytes);
  /* data[bytes] of rank `root` becomes data of all ranks. */
  int (*broadcast)(void* user, void* data, int64_t bytes, int32_t root);
  int (*barrier)(void* user);
  /* Optional. Makes the group of the ranks of equal `color`, ranked by (key, rank), in `*part`,
   * with its rank and size; nothing for color < 0. Collective. Without it, grad_worker_fraction
   * must be 1/ranks (0) or 1. */
  int (*split)(void* user, int32_t color, int32_t key, struct dkfac_comm_callbacks* part,
               int32_t* rank, int32_t* size);
  /* Optional. Makes pending and later calls fail on every rank. */
  void (*abort)(void* user, const char* reason);
  /* Optional. Called once, when the communicator and all that use it are destroyed; not where
   * making it fails. */
  void (*release)(void* user);
} dkfac_comm_callbacks;

/* --- layers ---------------------------------------------------------------------------------- */

typedef enum dkfac_layer_kind {
  DKFAC_LINEAR = 0,    /* x[n,...,in], W[out,in], b[out] */
  DKFAC_CONV2D = 1,    /* W[out,in/groups,kh,kw] (nchw) or W[out,kh,kw,in/groups] (nhwc) */
  DKFAC_NORM = 2,      /* gamma[channels], beta[channels] */
  DKFAC_EMBEDDING = 3, /* W[vocabulary,width] */
  DKFAC_PLAIN = 4      /* Parameters without curvature, which get the first-order update. */
} dkfac_layer_kind;
typedef enum dkfac_layout { DKFAC_NHWC = 0, DKFAC_NCHW = 1 } dkfac_layout;

/* Geometry of one layer (core/layer_spec.h). */
typedef struct dkfac_layer_spec {
  size_t struct_size;
  int32_t kind;        /* dkfac_layer_kind */
  int64_t in, out;     /* Linear, Conv2d: features or channels. */
  int32_t bias;        /* Linear, Conv2d; default 1. */
  int32_t layout;      /* Conv2d, Norm: dkfac_layout; default DKFAC_NCHW. */
  int32_t kernel[2];   /* Conv2d: height and width, as in the following; default 1. */
  int32_t stride[2];   /* Default 1. */
  int32_t padding[2];  /* Default 0. */
  int32_t dilation[2]; /* Default 1. */
  int32_t same; /* Conv2d: pad so that the output has the size of the input; stride 1, padding 0. */
  int32_t groups;            /* Conv2d; default 1. */
  int64_t channels;          /* Norm. */
  int32_t scale;             /* Norm: 0 if gamma is fixed; default 1. */
  int32_t over_channels;     /* Norm: 1 for layer normalisation over x[n,...,c]; default 0: batch
                                normalisation. */
  int64_t vocabulary, width; /* Embedding. */
  int64_t plain_weight, plain_bias; /* Plain: numbers of elements. */
  const char* reason; /* Plain: why the layer has no curvature, for describe(); may be null. */
  int64_t max_rows, sample_rows; /* Linear, Conv2d: see LinearSpec; default 0 and 1. */
} dkfac_layer_spec;

/* --- options --------------------------------------------------------------------------------- */

typedef enum dkfac_loss_reduction {
  DKFAC_LOCAL_MEAN = 0,  /* Mean over this rank's samples, as under DDP. */
  DKFAC_GLOBAL_MEAN = 1, /* Sum over this rank's samples, divided by the global batch. */
  DKFAC_SUM = 2
} dkfac_loss_reduction;
typedef enum dkfac_norm_fisher {
  DKFAC_FISHER_DIAGONAL = 0,
  DKFAC_FISHER_UNIT_WISE = 1,
  DKFAC_FISHER_FULL = 2
} dkfac_norm_fisher;
typedef enum dkfac_inverse_method {
  DKFAC_CHOLESKY = 0,
  DKFAC_EIGEN = 1,
  DKFAC_EKFAC = 2
} dkfac_inverse_method;
typedef enum dkfac_damping_split {
  DKFAC_SPLIT_PI = 0,
  DKFAC_SPLIT_EQUAL_TRACES = 1,
  DKFAC_SPLIT_CONSTANT = 2
} dkfac_damping_split;
typedef enum dkfac_weight_sharing { DKFAC_EXPAND = 0, DKFAC_REDUCE = 1 } dkfac_weight_sharing;
typedef enum dkfac_average_start {
  DKFAC_START_FIRST = 0,
  DKFAC_START_IDENTITY = 1,
  DKFAC_START_TRACE = 2
} dkfac_average_start;
typedef enum dkfac_staleness { DKFAC_FIXED = 0, DKFAC_ADAPTIVE = 1 } dkfac_staleness;
typedef enum dkfac_step_length {
  DKFAC_LENGTH_AUTO = 0,
  DKFAC_LENGTH_NONE = 1,
  DKFAC_LENGTH_GRADIENT = 2,
  DKFAC_LENGTH_PROJECTION = 3,
  DKFAC_LENGTH_GRADUAL = 4
} dkfac_step_length;
/* In the place of a dkfac_dtype: the type of the data or of the computation. */
#define DKFAC_SAME_DTYPE (-1)

/* CurvatureOptions (kfac/options.h), where each field is described. */
typedef struct dkfac_curvature_options {
  size_t struct_size;
  double damping;          /* lambda >= 0; default 0: by relative_damping. */
  double relative_damping; /* > 0; default 0.3; left alone where damping is not 0. */
  int32_t damping_split;   /* dkfac_damping_split; default pi. */
  double norm_damping;     /* Normalisations use norm_damping * lambda; default 1. */
  double new_weight; /* Of the newest statistic in the running average, in (0, 1]; default 0.05. */
  int32_t average_start;      /* dkfac_average_start; default first. */
  double statistics_fraction; /* Of a record's samples, in (0, 1]; default 1. */
  int32_t micro_batches;      /* Records of each layer per step; default 1. */
  int32_t norm_fisher;        /* dkfac_norm_fisher; default unit-wise. */
  int32_t sharing;            /* dkfac_weight_sharing; default expand. */
  int32_t operand;  /* dkfac_dtype of factor products' operands; default DKFAC_SAME_DTYPE. */
  int32_t low_rank; /* Default 1. */
  int32_t records_valid_until_step;              /* CUDA; default 0. */
  int32_t staleness;                             /* dkfac_staleness; default fixed. */
  int32_t statistics_interval, inverse_interval; /* 0: chosen by overhead (default). */
  double overhead;              /* What K-FAC may add to a step; default 0.25 of it. */
  int32_t early_refreshes;      /* Default 1. */
  int32_t stagger_inverses;     /* Default 0. */
  int32_t delay_inverses;       /* Default 0. */
  double similarity;            /* Of the adaptive rule; default 0.1. */
  int32_t max_interval;         /* 0: none (default). */
  int32_t inverse_method;       /* dkfac_inverse_method; default Cholesky. */
  int32_t max_failed_refreshes; /* Default 3. */
  const char* failure_folder;   /* Null or "": failed factors are not saved. */
  double grad_worker_fraction;  /* 0: 1/ranks (default). */
  int32_t calibrate;            /* Default 0. */
  double kl_clip;               /* 0: off (default). */
  int32_t step_length;          /* dkfac_step_length; default auto. */
  int32_t precondition_tf32;    /* CUDA; default 0. */
  int32_t dtype;                /* Of factors and inverses: DKFAC_F32 (default) or DKFAC_F64. */
  int32_t loss_reduction;       /* dkfac_loss_reduction; default local mean. */
  int32_t overlap;              /* Default 1. */
  int64_t bucket_bytes;         /* Default 4 MiB. */
  int32_t gradient_wire, statistics_wire, weight_wire; /* dkfac_dtype; default DKFAC_SAME_DTYPE. */
  int32_t block_width;                                 /* 0: by work (default); -1: none. */
  int32_t split_factors, split_wide, local_statistics; /* Default 0. */
} dkfac_curvature_options;
/* Execution on one device: ContextOptions (core/context.h). Not in C: backend, priority, stream. */
typedef struct dkfac_context_options {
  size_t struct_size;
  dkfac_device device; /* Default CPU. */
  int32_t threads; /* OpenMP's, of the calling thread; 0 (default) leaves the number unchanged. */
  int32_t tf32;    /* CUDA; default 0. */
  int32_t graphs;  /* CUDA: equal work of many steps is launched as a graph; default 1. */
} dkfac_context_options;

/* --- arguments and report of a step ---------------------------------------------------------- */

typedef struct dkfac_record_scale {
  double loss_scale;    /* Loss scale that the gradient still contains; 1 without one. */
  int64_t global_batch; /* Samples of the step over all ranks; 0: those of the record x ranks x
                           micro-batches. */
} dkfac_record_scale;

/* StepArgs (core/report.h). Not in C: StepFlags::loss, a loss that is read on the device; set
 * `loss_nonfinite`. */
typedef struct dkfac_step_args {
  size_t struct_size;
  double lr;       /* Required by optimizers and by the KL clip; default NaN. */
  double momentum; /* Overrides the option in this step; NaN (default): the option. */
  int32_t loss_nonfinite, data_error; /* 1: this rank rejects the step. */
  int32_t stop;                       /* 1: this rank wants to stop after the step. */
  double own_seconds; /* Preconditioner::count_own(); not for optimizers. Default 0. */
} dkfac_step_args;
#define DKFAC_INVERSE_STAGES 5
/* StepReport (kfac/report.h), where each field is described. Set `struct_size` to the size of the
 * struct before the call: a library newer than the program's header fills the fields that the
 * program knows; one that is older refuses the report before the step runs.
 * Not in C: the names of `without_inverse`, `statistics`, LaunchCounts::reason, and the parts of
 * StepSeconds, statistics_a to gather. */
typedef struct dkfac_step_report {
  size_t struct_size;
  int64_t step;
  int32_t updated; /* 0: gradients and parameters are unchanged. */
  /* Numbers of ranks that raised each flag. */
  int32_t nonfinite_loss, nonfinite_gradient, nonfinite_statistic, data_error, numeric_failure,
      stop;
  int32_t statistics_refreshed, inverses_refreshed;
  int32_t layers_without_inverse;
  int32_t inverses[DKFAC_INVERSE_STAGES];
  int64_t inverses_step;
  int32_t failed_factors;
  int64_t underflow;
  int64_t update_step, saturated;
  double kl_factor, damping, momentum;
  int32_t statistics_interval, inverse_interval; /* In force from the next step on. */
  int32_t intervals_chosen;                      /* 1: by the overhead, after this step. */
  double overhead, fixed_overhead;               /* Measured with them; 0: not yet. */
  double flops, flops_skipped;
  uint64_t bytes, bytes_skipped;
  int64_t scratch_growths;
  double seconds_statistics, seconds_exchange, seconds_inverse,
      seconds_update; /* Host time on this rank. */
  /* CUDA: steps whose preconditioning was launched call by call, captured as a graph, replayed, and
   * could not be captured, since the object was made; 0 without graphs. */
  int64_t launches_eager, launches_captured, launches_replayed, launches_refused;
} dkfac_step_report;

/* Settings that a schedule changes between two steps; equal on all ranks. */
typedef struct dkfac_curvature_settings {
  size_t struct_size;
  double damping, relative_damping; /* 0: unchanged, as for the following. Not both. */
  /* -1: chosen by the overhead, from now on or again. */
  int32_t statistics_interval, inverse_interval;
  int32_t micro_batches;
  double new_weight;
} dkfac_curvature_settings;

/* --- state and factors ----------------------------------------------------------------------- */

/* Distribution of a value over ranks (core/state.h, StateKind). */
typedef enum dkfac_state_kind {
  DKFAC_REPLICATED = 0,
  DKFAC_OWNED = 1,
  DKFAC_OWNER_COPY = 2,
  DKFAC_AVERAGED = 3,
  DKFAC_SUMMED = 4,
  DKFAC_ANY_RANK = 5,
  DKFAC_SHARDED = 6
} dkfac_state_kind;

/* Visits every value that determines later steps. A callback reads or writes the value in place;
 * tensors are contiguous host memory, valid until the callback returns. Each returns 0, or another
 * value after dkfac_set_callback_error(): no other callback is called then, and the visit returns
 * DKFAC_CALLBACK_FAILED. What callbacks had written stays: after a failed load the object has parts
 * of two states. Load a whole one before the next step, or destroy the object. */
typedef struct dkfac_state_visitor {
  size_t struct_size;
  void* user;
  int (*tensor)(void* user, const char* name, int32_t kind, const dkfac_tensor* value);
  int (*integer)(void* user, const char* name, int32_t kind, int64_t* value);
  int (*real)(void* user, const char* name, int32_t kind, double* value);
} dkfac_state_visitor;

/* Copy of what this rank holds of the curvature of a layer (kfac/factors.h). Not in C:
 * FactorCopy::statistics and damping. */
typedef struct dkfac_factors dkfac_factors;
typedef enum dkfac_factor {
  DKFAC_A_AVERAGE = 0, /* Running average without damping, on the owner. */
  DKFAC_A_INVERSE = 1, /* As it is applied, on the owner and the other workers. */
  DKFAC_A_VECTORS = 2, /* Eigenvectors in columns, with DKFAC_EIGEN and DKFAC_EKFAC. */
  DKFAC_A_VALUES = 3,
  DKFAC_G_AVERAGE = 4,
  DKFAC_G_INVERSE = 5,
  DKFAC_G_VECTORS = 6,
  DKFAC_G_VALUES = 7,
  DKFAC_NORM_AVERAGE = 8, /* Blocks of a normalisation. */
  DKFAC_EKFAC_SCALES = 9
} dkfac_factor;

/* --- preconditioner -------------------------------------------------------------------------- */

/* K-FAC for an existing training loop: kfac/preconditioner.h has the contract of each call. Per
 * step: records of every layer, then dkfac_preconditioner_step() with gradients that are reduced
 * over ranks already, then the caller's own update. */
typedef struct dkfac_preconditioner dkfac_preconditioner;

/* Gradients of one layer, preconditioned in place: f32 or f64, contiguous, in the shape of the
 * weight or any vector of the same elements in the same order. A matrix that is stored as [in, out]
 * is passed in the shape [out, in] with the strides {1, out}. `bias` without data for a layer
 * without one. */
typedef struct dkfac_layer_grad {
  int32_t layer;
  dkfac_tensor weight, bias;
} dkfac_layer_grad;

/* --- optimizers ------------------------------------------------------------------------------ */

/* Distributed optimizers, which reduce gradients and update parameters: optim/optimizer.h has the
 * contract of each call. Per step: records where K-FAC wants them, dkfac_optimizer_grads_ready()
 * for every layer, then dkfac_optimizer_step(). Not in C: all_grads_ready(), pass_state() and
 * resume(), which are for passes that are replayed as graphs. */
typedef struct dkfac_optimizer dkfac_optimizer;

typedef enum dkfac_optimizer_kind {
  DKFAC_SGD = 0,
  DKFAC_LARS = 1,
  DKFAC_ADAMW = 2,
  DKFAC_KFAC = 3,
  DKFAC_MUON = 4
} dkfac_optimizer_kind;

/* Options of all kinds; a field of another kind is ignored. dkfac_optimizer_options_init() sets the
 * defaults of `kind`. */
typedef struct dkfac_optimizer_options {
  size_t struct_size;
  int32_t kind;                /* dkfac_optimizer_kind */
  double momentum;             /* SGD, LARS, K-FAC, Muon: in [0, 1); default 0.9, Muon 0.95. */
  int32_t nesterov;            /* SGD, LARS; default 0. Muon; default 1. */
  double weight_decay;         /* Defaults 0 (SGD, K-FAC), 1e-4 (LARS), 0.01 (AdamW), 0.1 (Muon). */
  int32_t momentum_correction; /* SGD; default 1. */
  double eta, epsilon;         /* LARS: 1e-3 and 0. AdamW, Muon, K-FAC: epsilon 1e-8. */
  int32_t lars_form;           /* LARS: 0 MLPerf (default), 1 LARC, 2 joint norm, 3 clipped. */
  double min_trust, max_trust; /* LARS, clipped: 1e-5 and 1. */
  double beta1, beta2;         /* AdamW, K-FAC: 0.9 and 0.999. Muon, for its AdamW: 0.9 and 0.95. */
  /* K-FAC: 0 momentum (default), which refuses other beta1, beta2 and epsilon than these; 1 AdamW,
   * which refuses another momentum than this, and the next three; step_length auto is gradual. */
  int32_t update;
  int32_t momentum_rule; /* K-FAC: 0 constant, 1 corrected (default), 2 paper. */
  double initial_lr;     /* K-FAC: for the paper's momentum rule. */
  int32_t rescale;       /* K-FAC: 0 off (default), 1 always, 2 shrink. */
  int32_t muon_scale;    /* Muon: 0 original, 1 match RMS of AdamW (default). */
  double adam_rate; /* Muon: AdamW's learning rate in multiples of that of matrices; default 1. */
  /* SGD, LARS, AdamW, Muon: this field and the rest. K-FAC takes those of its curvature, and
   * refuses other values than the defaults here. */
  int32_t loss_reduction; /* dkfac_loss_reduction */
  int32_t overlap;
  int64_t bucket_bytes;
  int32_t gradient_wire; /* dkfac_dtype; default DKFAC_SAME_DTYPE. */
} dkfac_optimizer_options;
/* Parameters and gradients of a layer, borrowed until the optimizer is destroyed (LayerParams). */
typedef struct dkfac_layer_params {
  size_t struct_size;
  dkfac_tensor weight, bias, weight_grad, bias_grad;
  double weight_lr, bias_lr; /* Multipliers of the learning rate; default 1. */
  double bias_decay; /* Weight decay of the bias as a multiple of the option's; default 0. */
} dkfac_layer_params;
