#include <limits>
#include <span>

#include "dkfac/comm/communicator.h"
#include "dkfac/comm/in_process.h"
#include "dkfac/core/stream.h"

#include "c/c_support.h"
#include "c/handles.h"

namespace dkfac::c::testing {
namespace {

/// Callbacks over an in-process communicator of this thread. Every dtype has an even number of
/// bytes; f16 moves them unchanged.
struct ThreadGroup {
  std::shared_ptr<comm::Communicator> comm;
  int calls_until_failure = std::numeric_limits<int>::max();

  static ThreadGroup& of(void* user) { return *static_cast<ThreadGroup*>(user); }
  int run(auto body) {
    if (--calls_until_failure < 0) {
      dkfac_set_callback_error("peer 1 is gone");
      return 3;
    }
    body();
    return 0;
  }
  static TensorView bytes(void* data, std::int64_t count) {
    return {data, DType::f16, Shape{count / 2}};
  }

  static int all_reduce(void* user, void* data, std::int64_t count, std::int32_t dtype,
                        std::int32_t maximum) {
    return of(user).run([&] {
      of(user).comm->all_reduce({data, static_cast<DType>(dtype), Shape{count}},
                                maximum != 0 ? comm::ReduceOp::max : comm::ReduceOp::sum,
                                Stream::cpu());
    });
  }
  static int all_gather(void* user, const void* in, void* out, std::int64_t size) {
    return of(user).run([&] {
      const int ranks = of(user).comm->size();
      const std::vector<std::int64_t> counts(static_cast<std::size_t>(ranks), size / 2);
      of(user).comm->all_gather_v(ConstTensorView(in, DType::f16, {size / 2}), counts,
                                  bytes(out, size * ranks), Stream::cpu());
    });
  }
  static int broadcast(void* user, void* data, std::int64_t size, std::int32_t root) {
    return of(user).run([&] { of(user).comm->broadcast(bytes(data, size), root, Stream::cpu()); });
  }
  static int barrier(void* user) {
    return of(user).run([&] { of(user).comm->barrier(); });
  }
  static int split(void* user, std::int32_t color, std::int32_t key, dkfac_comm_callbacks* part,
                   std::int32_t* rank, std::int32_t* size) {
    return of(user).run([&] {
      auto* group = new ThreadGroup{of(user).comm->split(color, key)};
      *part = group->callbacks();
      part->release = [](void* owned) { delete &of(owned); };
      *rank = group->comm->rank();
      *size = group->comm->size();
    });
  }
  static void abort(void* user, const char* reason) { of(user).comm->abort(reason); }

  dkfac_comm_callbacks callbacks() {
    dkfac_comm_callbacks callbacks{};
    callbacks.struct_size = sizeof callbacks;
    callbacks.user = this;
    callbacks.all_reduce = &ThreadGroup::all_reduce;
    callbacks.all_gather = &ThreadGroup::all_gather;
    callbacks.broadcast = &ThreadGroup::broadcast;
    callbacks.barrier = &ThreadGroup::barrier;
    callbacks.split = &ThreadGroup::split;
    callbacks.abort = &ThreadGroup::abort;
    return callbacks;
  }
};

Comm from_callbacks(const ThreadGroup& group, const dkfac_comm_callbacks& callbacks) {
  dkfac_comm* comm = nullptr;
  expect_ok(dkfac_comm_from_callbacks(group.comm->rank(), group.comm->size(), &callbacks, nullptr,
                                      &comm));
  return Comm(comm);
}

constexpr std::int64_t kSamples = 12, kInputs = 5;
constexpr std::int64_t kOutputs[] = {4, 3, 2};

/// Runs three steps of three layers on samples [first, first + count), and returns the
/// preconditioned weights. The gradients are those of all samples; with several `parts` they are
/// divided by their number and summed over ranks.
std::vector<double> train(dkfac_comm* comm, double fraction, std::int64_t first, std::int64_t count,
                          int parts = 1) {
  dkfac_curvature_options options = f64_options();
  options.grad_worker_fraction = fraction;
  options.bucket_bytes = 64;  // Records launch collectives, where these overlap.
  dkfac_preconditioner* made = nullptr;
  expect_ok(dkfac_preconditioner_create(comm, &options, nullptr, &made));
  const Preconditioner object(made);
  for (const std::int64_t out : kOutputs) {
    const dkfac_layer_spec spec = linear(kInputs, out);
    std::int32_t layer = 0;
    expect_ok(dkfac_preconditioner_add_layer(object.get(), ("fc" + std::to_string(out)).c_str(),
                                             &spec, &layer));
  }
  std::vector<double> result;
  for (std::uint64_t step = 0; step < 3; ++step) {
    std::vector<Values> weights, biases;
    std::vector<dkfac_layer_grad> grads;
    for (std::int32_t layer = 0; layer < 3; ++layer) {
      const std::int64_t out = kOutputs[layer];
      const std::uint64_t seed = 100 * step + static_cast<std::uint64_t>(layer);
      Values x({kSamples, kInputs}, seed), g({kSamples, out}, seed + 50);
      // A rank's loss is the mean over its own samples.
      for (double& v : g.data) v /= static_cast<double>(count);
      const std::int64_t x_shape[] = {count, kInputs}, g_shape[] = {count, out};
      dkfac_tensor input = x.tensor(), grad = g.tensor();
      input.data = x.data.data() + first * kInputs;
      input.shape = x_shape;
      grad.data = g.data.data() + first * out;
      grad.shape = g_shape;
      expect_ok(dkfac_preconditioner_record_input(object.get(), layer, &input, nullptr));
      expect_ok(dkfac_preconditioner_record_grad_output(object.get(), layer, &grad, nullptr));
      weights.emplace_back(std::vector{out, kInputs}, seed + 70);
      biases.emplace_back(std::vector{out}, seed + 80);
    }
    if (parts > 1)
      for (std::vector<Values>* all : {&weights, &biases})
        for (Values& part : *all) {
          for (double& v : part.data) v /= parts;
          const dkfac_tensor tensor = part.tensor();
          expect_ok(dkfac_comm_all_reduce(comm, &tensor, DKFAC_REDUCE_SUM));
        }
    for (std::int32_t layer = 0; layer < 3; ++layer) {
      const auto i = static_cast<std::size_t>(layer);
      grads.push_back({layer, weights[i].tensor(), biases[i].tensor()});
    }
    expect_ok(dkfac_preconditioner_step(object.get(), grads.data(), 3, nullptr, nullptr));
    for (const Values& w : weights) result.insert(result.end(), w.data.begin(), w.data.end());
  }
  return result;
}

// Statistics of halves of a batch, reduced through callbacks, are those of the batch.
TEST(CComm, RanksOverCallbacksAgreeWithOneRank) {
  const std::vector<double> one = train(self().get(), 0, 0, kSamples);
  for (const double fraction : {0.0, 0.5, 1.0})
    comm::run_ranks(4, [&](const std::shared_ptr<comm::Communicator>& threads) {
      ThreadGroup group{threads};
      const Comm comm = from_callbacks(group, group.callbacks());
      EXPECT_STREQ(dkfac_comm_backend(comm.get()), "external");
      const std::vector<double> part =
          train(comm.get(), fraction, threads->rank() * kSamples / 4, kSamples / 4);
      ASSERT_EQ(part.size(), one.size());
      for (std::size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(part[i], one[i], 1e-10) << i;
    });
  // Negative control: a rank alone with a quarter of the batch has other statistics.
  const std::vector<double> quarter = train(self().get(), 0, 0, kSamples / 4);
  EXPECT_GT(std::abs(quarter[0] - one[0]), 1e-6);
}

TEST(CComm, GradientsMayBeReducedBetweenRecordsAndStep) {
  const std::vector<double> one = train(self().get(), 0, 0, kSamples);
  for (const double fraction : {0.0, 0.5, 1.0})
    comm::run_ranks(4, [&](const std::shared_ptr<comm::Communicator>& threads) {
      dkfac_comm overlapping{threads};  // Over callbacks nothing would be pending.
      const std::vector<double> part =
          train(&overlapping, fraction, threads->rank() * kSamples / 4, kSamples / 4, 4);
      ASSERT_EQ(part.size(), one.size());
      for (std::size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(part[i], one[i], 1e-10) << i;
    });
  // Negative control: a quarter of the gradients alone.
  EXPECT_GT(std::abs(train(self().get(), 0, 0, kSamples, 4)[0] - one[0]), 1e-6);
}

/// Tensor of all elements of `data`, whose number is `shape[0]`.
template <class T>
dkfac_tensor vector_tensor(std::vector<T>& data, const std::int64_t* shape, std::int32_t dtype) {
  dkfac_tensor tensor{};
  tensor.data = data.data();
  tensor.shape = shape;
  tensor.ndim = 1;
  tensor.dtype = dtype;
  return tensor;
}

TEST(CComm, ReducesInPlaceOnEveryRank) {
  comm::run_ranks(3, [&](const std::shared_ptr<comm::Communicator>& threads) {
    ThreadGroup group{threads};
    const Comm comm = from_callbacks(group, group.callbacks());
    const double rank = threads->rank();
    const std::int64_t three[] = {3};
    std::vector<double> x{rank, 1, 4 - rank}, largest = x;
    const dkfac_tensor sum = vector_tensor(x, three, DKFAC_F64);
    const dkfac_tensor max = vector_tensor(largest, three, DKFAC_F64);
    expect_ok(dkfac_comm_all_reduce(comm.get(), &sum, DKFAC_REDUCE_SUM));
    expect_ok(dkfac_comm_all_reduce(comm.get(), &max, DKFAC_REDUCE_MAX));
    EXPECT_EQ(x, (std::vector<double>{3, 3, 9}));
    EXPECT_EQ(largest, (std::vector<double>{2, 1, 4}));
    std::vector<float> y(3, 0.5F);
    const dkfac_tensor narrow = vector_tensor(y, three, DKFAC_F32);
    expect_ok(dkfac_comm_all_reduce(comm.get(), &narrow, DKFAC_REDUCE_SUM));
    EXPECT_EQ(y, std::vector<float>(3, 1.5F));
  });
}

TEST(CComm, RefusesToReduceWhatItCannot) {
  const Comm comm = self();
  std::vector<double> x{1, 2, 3, 4};
  const std::int64_t four[] = {4}, two[] = {2}, gaps[] = {2};
  dkfac_tensor tensor = vector_tensor(x, four, DKFAC_F64);
  const auto refuse = [&](dkfac_comm* on, const dkfac_tensor* what, std::int32_t op,
                          const char* text) {
    expect_failure(dkfac_comm_all_reduce(on, what, op), DKFAC_INVALID_ARGUMENT, text);
  };
  refuse(nullptr, &tensor, DKFAC_REDUCE_SUM, "comm is null");
  refuse(comm.get(), nullptr, DKFAC_REDUCE_SUM, "tensor is null");
  refuse(comm.get(), &tensor, 2, "op is 2; it must be 0 to 1");
  tensor.dtype = DKFAC_I32;
  refuse(comm.get(), &tensor, DKFAC_REDUCE_MAX, "max of i32");
  tensor = vector_tensor(x, two, DKFAC_F64);
  tensor.strides = gaps;
  refuse(comm.get(), &tensor, DKFAC_REDUCE_SUM, "not contiguous");
  EXPECT_EQ(x, (std::vector<double>{1, 2, 3, 4}));
}

/// Rank 1 aborts; every call of every rank fails then, far below the time limit of 120 seconds.
void expect_abort(dkfac_comm* comm) {
  if (dkfac_comm_rank(comm) == 1) expect_ok(dkfac_comm_abort(comm, "no data are left"));
  std::vector<double> x{1};
  const std::int64_t one[] = {1};
  const dkfac_tensor tensor = vector_tensor(x, one, DKFAC_F64);
  for (int call = 0; call < 2; ++call) {
    const int status = dkfac_comm_all_reduce(comm, &tensor, DKFAC_REDUCE_SUM);
    expect_failure(status, DKFAC_COMM_ERROR, "rank 1 aborted the group");
    expect_failure(status, DKFAC_COMM_ERROR, "no data are left");
  }
}

TEST(CComm, AnAbortFailsEveryRank) {
  comm::run_ranks(2, [](const std::shared_ptr<comm::Communicator>& threads) {
    dkfac_comm comm{threads};
    expect_abort(&comm);
  });
}

TEST(CComm, AnAbortCallsThatOfTheCallbacks) {
  comm::run_ranks(2, [](const std::shared_ptr<comm::Communicator>& threads) {
    ThreadGroup group{threads};
    expect_abort(from_callbacks(group, group.callbacks()).get());
  });
}

TEST(CComm, AnAbortNeedsNoReason) {
  const Comm comm = self();
  expect_failure(dkfac_comm_abort(nullptr, "reason"), DKFAC_INVALID_ARGUMENT, "comm is null");
  std::vector<double> x{1};
  const std::int64_t one[] = {1};
  const dkfac_tensor tensor = vector_tensor(x, one, DKFAC_F64);
  expect_ok(dkfac_comm_all_reduce(comm.get(), &tensor, DKFAC_REDUCE_SUM));  // Nothing is aborted.
  expect_ok(dkfac_comm_abort(comm.get(), nullptr));
  expect_failure(dkfac_comm_all_reduce(comm.get(), &tensor, DKFAC_REDUCE_SUM), DKFAC_COMM_ERROR,
                 "no reason was given");
}

TEST(CComm, AFailingCallbackIsACommErrorWithItsText) {
  ThreadGroup group{comm::make_self()};
  group.calls_until_failure = 0;
  dkfac_comm_callbacks callbacks = group.callbacks();
  const Comm comm = from_callbacks(group, callbacks);
  dkfac_preconditioner* object = nullptr;
  expect_ok(dkfac_preconditioner_create(comm.get(), nullptr, nullptr, &object));
  const Preconditioner owner(object);
  const dkfac_layer_spec spec = linear(2, 2);
  std::int32_t layer = 0;
  expect_ok(dkfac_preconditioner_add_layer(object, "fc", &spec, &layer));
  expect_failure(dkfac_preconditioner_prepare(object), DKFAC_COMM_ERROR, "peer 1 is gone");
}

TEST(CComm, ReleasesItsCallbacksOnce) {
  ThreadGroup group{comm::make_self()};
  static int released = 0;
  released = 0;
  dkfac_comm_callbacks callbacks = group.callbacks();
  callbacks.release = [](void*) { ++released; };
  Comm comm = from_callbacks(group, callbacks);
  dkfac_preconditioner* object = nullptr;
  expect_ok(dkfac_preconditioner_create(comm.get(), nullptr, nullptr, &object));
  Preconditioner owner(object);
  comm.reset();
  EXPECT_EQ(released, 0);  // The preconditioner keeps it alive.
  owner.reset();
  EXPECT_EQ(released, 1);
}

TEST(CComm, DoesNotReleaseWhatItDidNotMake) {
  ThreadGroup group{comm::make_self()};
  static int released = 0;
  released = 0;
  dkfac_comm_callbacks callbacks = group.callbacks();
  callbacks.release = [](void*) { ++released; };
  dkfac_comm_options options{};
  dkfac_comm_options_init(&options, sizeof options);
  options.timeout_s = -1;
  dkfac_comm* comm = nullptr;
  expect_failure(dkfac_comm_from_callbacks(0, 1, &callbacks, &options, &comm),
                 DKFAC_INVALID_ARGUMENT, "timeout_s");
  EXPECT_EQ(released, 0);
}

int calls_of_throwing = 0;
int throw_no_exception() {
  ++calls_of_throwing;
  throw 1;
}

TEST(CComm, ACallbackThatThrowsFailsTheCommunicatorForGood) {
  ThreadGroup group{comm::make_self()};
  calls_of_throwing = 0;
  dkfac_comm_callbacks callbacks = group.callbacks();
  callbacks.all_reduce = [](auto...) { return throw_no_exception(); };
  callbacks.all_gather = [](auto...) { return throw_no_exception(); };
  callbacks.broadcast = [](auto...) { return throw_no_exception(); };
  callbacks.barrier = [](auto...) { return throw_no_exception(); };
  const Comm comm = from_callbacks(group, callbacks);
  for (int attempt = 0; attempt < 2; ++attempt) {
    dkfac_preconditioner* object = nullptr;
    expect_ok(dkfac_preconditioner_create(comm.get(), nullptr, nullptr, &object));
    const Preconditioner owner(object);
    const dkfac_layer_spec spec = linear(2, 2);
    std::int32_t layer = 0;
    expect_ok(dkfac_preconditioner_add_layer(object, "fc", &spec, &layer));
    expect_failure(dkfac_preconditioner_prepare(object), DKFAC_COMM_ERROR, "unknown type");
    EXPECT_EQ(calls_of_throwing, 1);  // A communicator that has failed makes no further call.
  }
}

TEST(CComm, RefusesWhatCannotWork) {
  ThreadGroup group{comm::make_self()};
  dkfac_comm_callbacks callbacks = group.callbacks();
  dkfac_comm* comm = nullptr;
  expect_failure(dkfac_comm_from_callbacks(2, 2, &callbacks, nullptr, &comm),
                 DKFAC_INVALID_ARGUMENT, "rank is 2 of 2");
  callbacks.barrier = nullptr;
  expect_failure(dkfac_comm_from_callbacks(0, 1, &callbacks, nullptr, &comm),
                 DKFAC_INVALID_ARGUMENT, "barrier is null");
  expect_failure(dkfac_comm_from_callbacks(0, 1, nullptr, nullptr, &comm), DKFAC_INVALID_ARGUMENT,
                 "callbacks is null");
  expect_failure(dkfac_comm_self(nullptr, nullptr), DKFAC_INVALID_ARGUMENT, "out is null");
  expect_failure(dkfac_comm_tcp(0, 1, nullptr, 0, nullptr, &comm), DKFAC_INVALID_ARGUMENT,
                 "host is null");
  dkfac_comm_options options{};
  dkfac_comm_options_init(&options, sizeof options);
  options.timeout_s = -1;
  expect_failure(dkfac_comm_self(&options, &comm), DKFAC_INVALID_ARGUMENT, "timeout_s");
  EXPECT_EQ(comm, nullptr);
  EXPECT_EQ(dkfac_comm_rank(nullptr), -1);
  dkfac_comm_destroy(nullptr);
}

TEST(CComm, SaysWhatItIs) {
  const Comm comm = self();
  EXPECT_EQ(dkfac_comm_rank(comm.get()), 0);
  EXPECT_EQ(dkfac_comm_size(comm.get()), 1);
  EXPECT_STREQ(dkfac_comm_backend(comm.get()), "self");
  EXPECT_EQ(dkfac_c_abi(), DKFAC_C_ABI);
  EXPECT_NE(std::string(dkfac_build_info()).find(dkfac_version()), std::string::npos);
}

}  // namespace
}  // namespace dkfac::c::testing
