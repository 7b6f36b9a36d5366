#pragma once

#include <array>
#include <cstdint>
#include <cudnn.h>
#include <map>
#include <vector>

#include <gtest/gtest.h>

namespace dkfac::testing {

using Descriptor = cudnnBackendDescriptor_t;

/// Makes descriptors and destroys them at the end.
class Maker {
 public:
  ~Maker() {
    for (const Descriptor d : made_) EXPECT_EQ(cudnnBackendDestroyDescriptor(d), kGood);
    cudnnDestroy(handle);
  }
  Maker() { EXPECT_EQ(cudnnCreate(&handle), kGood); }
  Maker(const Maker&) = delete;
  Maker& operator=(const Maker&) = delete;
  static constexpr auto kGood = CUDNN_STATUS_SUCCESS;

  Descriptor make(cudnnBackendDescriptorType_t type) {
    Descriptor d = nullptr;
    EXPECT_EQ(cudnnBackendCreateDescriptor(type, &d), kGood);
    made_.push_back(d);
    return d;
  }
  template <class T>
  static cudnnStatus_t set(Descriptor d, cudnnBackendAttributeName_t name,
                           cudnnBackendAttributeType_t type, const std::vector<T>& values) {
    return cudnnBackendSetAttribute(d, name, type, static_cast<std::int64_t>(values.size()),
                                    values.data());
  }
  static cudnnStatus_t link(Descriptor d, cudnnBackendAttributeName_t name,
                            const std::vector<Descriptor>& to) {
    return set(d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, to);
  }
  static cudnnStatus_t numbers(Descriptor d, cudnnBackendAttributeName_t name,
                               const std::vector<std::int64_t>& values) {
    return set(d, name, CUDNN_TYPE_INT64, values);
  }

  /// Not finalised.
  Descriptor open_tensor(std::int64_t id, cudnnDataType_t type,
                         const std::vector<std::int64_t>& d) {
    const Descriptor t = make(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    EXPECT_EQ(set(t, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, std::vector{type}), kGood);
    numbers(t, CUDNN_ATTR_TENSOR_DIMENSIONS, d);
    numbers(t, CUDNN_ATTR_TENSOR_STRIDES, {d[1] * d[2] * d[3], 1, d[1] * d[3], d[1]});
    numbers(t, CUDNN_ATTR_TENSOR_UNIQUE_ID, {id});
    numbers(t, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, {16});
    return t;
  }
  Descriptor tensor(std::int64_t id, cudnnDataType_t type, const std::vector<std::int64_t>& dims,
                    bool is_virtual = false) {
    const Descriptor t = open_tensor(id, type, dims);
    cudnnBackendSetAttribute(t, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &is_virtual);
    EXPECT_EQ(cudnnBackendFinalize(t), kGood);
    return t;
  }
  /// Padding 1 before, 0 behind.
  Descriptor convolution() {
    const Descriptor c = make(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    set(c, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, std::vector{CUDNN_DATA_FLOAT});
    set(c, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE,
        std::vector{CUDNN_CROSS_CORRELATION});
    numbers(c, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, {2});
    numbers(c, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, {0, 1});
    numbers(c, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, {0, 0});
    numbers(c, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, {1, 1});
    numbers(c, CUDNN_ATTR_CONVOLUTION_DILATIONS, {1, 1});
    EXPECT_EQ(cudnnBackendFinalize(c), kGood);
    return c;
  }
  cudnnStatus_t forward(Descriptor x, Descriptor w, Descriptor y, Descriptor* made) {
    const Descriptor o = make(CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR);
    *made = o;
    link(o, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, {convolution()});
    link(o, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, {x});
    link(o, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, {w});
    link(o, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, {y});
    set(o, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_TYPE_FLOAT, std::vector{1.0F});
    set(o, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA, CUDNN_TYPE_FLOAT, std::vector{0.0F});
    return cudnnBackendFinalize(o);
  }
  Descriptor weights(Descriptor dy, Descriptor x, Descriptor dw) {
    const Descriptor o = make(CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR);
    link(o, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC, {convolution()});
    link(o, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY, {dy});
    link(o, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, {x});
    link(o, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW, {dw});
    set(o, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA, CUDNN_TYPE_FLOAT, std::vector{1.0F});
    set(o, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA, CUDNN_TYPE_FLOAT, std::vector{0.0F});
    EXPECT_EQ(cudnnBackendFinalize(o), kGood);
    return o;
  }
  Descriptor pointwise(cudnnPointwiseMode_t mode, Descriptor x, Descriptor y,
                       Descriptor b = nullptr) {
    const Descriptor how = make(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    set(how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, std::vector{mode});
    set(how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, std::vector{CUDNN_DATA_FLOAT});
    cudnnBackendFinalize(how);
    const Descriptor o = make(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    link(o, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, {how});
    link(o, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, {x});
    link(o, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, {y});
    if (b != nullptr) link(o, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, {b});
    EXPECT_EQ(cudnnBackendFinalize(o), kGood);
    return o;
  }
  Descriptor data(Descriptor dy, Descriptor w, Descriptor dx) {
    const Descriptor o = make(CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR);
    link(o, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC, {convolution()});
    link(o, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY, {dy});
    link(o, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W, {w});
    link(o, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, {dx});
    set(o, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, CUDNN_TYPE_FLOAT, std::vector{1.0F});
    set(o, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA, CUDNN_TYPE_FLOAT, std::vector{0.0F});
    EXPECT_EQ(cudnnBackendFinalize(o), kGood);
    return o;
  }
  Descriptor relu_backward(Descriptor dy, Descriptor x, Descriptor dx) {
    const Descriptor how = make(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    set(how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE,
        std::vector{CUDNN_POINTWISE_RELU_BWD});
    set(how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, std::vector{CUDNN_DATA_FLOAT});
    cudnnBackendFinalize(how);
    const Descriptor o = make(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    link(o, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, {how});
    link(o, CUDNN_ATTR_OPERATION_POINTWISE_DYDESC, {dy});
    link(o, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, {x});
    link(o, CUDNN_ATTR_OPERATION_POINTWISE_DXDESC, {dx});
    EXPECT_EQ(cudnnBackendFinalize(o), kGood);
    return o;
  }
  /// x, dy, mean, inverse deviation, scale; gradients of scale and shift, factors, constant.
  Descriptor norm_gradients(const std::array<Descriptor, 10>& tensors) {
    const Descriptor o = make(CUDNN_BACKEND_OPERATION_BN_BWD_WEIGHTS_DESCRIPTOR);
    set(o, CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_MATH_PREC, CUDNN_TYPE_DATA_TYPE,
        std::vector{CUDNN_DATA_FLOAT});
    constexpr std::array kNames{CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_X_DESC,
                                CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DY_DESC,
                                CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_MEAN_DESC,
                                CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_INVSTD_DESC,
                                CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_BN_SCALE_DESC,
                                CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DBN_SCALE_DESC,
                                CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_DBN_BIAS_DESC,
                                CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_DY_SCALE_DESC,
                                CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_X_SCALE_DESC,
                                CUDNN_ATTR_OPERATION_BN_BWD_WEIGHTS_EQ_BIAS};
    for (std::size_t i = 0; i < kNames.size(); ++i) link(o, kNames[i], {tensors[i]});
    EXPECT_EQ(cudnnBackendFinalize(o), kGood);
    return o;
  }
  Descriptor sums(Descriptor x, Descriptor sum, Descriptor squares) {
    const Descriptor o = make(CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR);
    set(o, CUDNN_ATTR_OPERATION_GENSTATS_MODE, CUDNN_TYPE_GENSTATS_MODE,
        std::vector{CUDNN_GENSTATS_SUM_SQSUM});
    set(o, CUDNN_ATTR_OPERATION_GENSTATS_MATH_PREC, CUDNN_TYPE_DATA_TYPE,
        std::vector{CUDNN_DATA_FLOAT});
    link(o, CUDNN_ATTR_OPERATION_GENSTATS_XDESC, {x});
    link(o, CUDNN_ATTR_OPERATION_GENSTATS_SUMDESC, {sum});
    link(o, CUDNN_ATTR_OPERATION_GENSTATS_SQSUMDESC, {squares});
    EXPECT_EQ(cudnnBackendFinalize(o), kGood);
    return o;
  }
  cudnnStatus_t graph(const std::vector<Descriptor>& operations, Descriptor* made) {
    *made = make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    link(*made, CUDNN_ATTR_OPERATIONGRAPH_OPS, operations);
    set(*made, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, std::vector{handle});
    return cudnnBackendFinalize(*made);
  }
  Descriptor graph(const std::vector<Descriptor>& operations) {
    Descriptor made = nullptr;
    EXPECT_EQ(graph(operations, &made), kGood);
    return made;
  }
  std::vector<Descriptor> proposals(Descriptor of,
                                    cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A) {
    const Descriptor h = make(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    link(h, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, {of});
    set(h, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, std::vector{mode});
    if (cudnnBackendFinalize(h) != kGood) return {};
    std::int64_t count = 0;
    cudnnBackendGetAttribute(h, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0,
                             &count, nullptr);
    std::vector<Descriptor> all;
    for (std::int64_t i = 0; i < count; ++i)
      all.push_back(make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR));
    cudnnBackendGetAttribute(h, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, count,
                             &count, all.data());
    return all;
  }
  std::vector<cudnnBackendNumericalNote_t> notes(Descriptor config) {
    Descriptor engine = make(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    std::int64_t count = 0;
    EXPECT_EQ(cudnnBackendGetAttribute(config, CUDNN_ATTR_ENGINECFG_ENGINE,
                                       CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &engine),
              kGood);
    std::vector<cudnnBackendNumericalNote_t> all(8);
    count = 0;  // Also where they cannot be read.
    cudnnBackendGetAttribute(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, 8,
                             &count, all.data());
    all.resize(static_cast<std::size_t>(count));
    return all;
  }
  cudnnStatus_t plan(Descriptor config, Descriptor* made) {
    *made = make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    link(*made, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, {config});
    set(*made, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, std::vector{handle});
    return cudnnBackendFinalize(*made);
  }
  static std::int64_t workspace(Descriptor plan) {
    std::int64_t bytes = -1, count = 0;
    EXPECT_EQ(cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                       CUDNN_TYPE_INT64, 1, &count, &bytes),
              kGood);
    return bytes;
  }
  cudnnStatus_t execute(Descriptor plan, const std::map<std::int64_t, void*>& memory, void* space) {
    std::vector<std::int64_t> ids;
    std::vector<void*> pointers;
    for (const auto& [id, pointer] : memory) {
      ids.push_back(id);
      pointers.push_back(pointer);
    }
    const Descriptor pack = make(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    numbers(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, ids);
    set(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, pointers);
    set(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, std::vector{space});
    EXPECT_EQ(cudnnBackendFinalize(pack), kGood);
    return cudnnBackendExecute(handle, plan, pack);
  }

  cudnnHandle_t handle = nullptr;

 private:
  std::vector<Descriptor> made_;
};

constexpr auto kGood = CUDNN_STATUS_SUCCESS;
constexpr auto kF32 = CUDNN_DATA_FLOAT;
constexpr auto kF16 = CUDNN_DATA_HALF;

}  // namespace dkfac::testing
