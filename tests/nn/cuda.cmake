# Layers on a device, and their kernels as any compiler takes them.
dkfac_test(nn.functors
  SOURCES backends/elementwise_functors_test.cpp
          backends/conv_functors_test.cpp backends/conv_cudnn_functors_test.cpp
          backends/loss_functors_test.cpp
          behaviour/column_functors_test.cpp backends/layer_norm_functors_test.cpp behaviour/norm_signs_functors_test.cpp backends/pool_functors_test.cpp
          backends/regularize_functors_test.cpp
  LINK dkfac::nn GTest::gtest_main LABELS nn)
dkfac_gpu_test(nn.cuda.elementwise
  SOURCES behaviour/cuda/activation_test.cpp
  LINK dkfac::nn LABELS nn)
dkfac_gpu_test(nn.cuda.products
  SOURCES backends/cuda/conv_products_test.cpp behaviour/cuda/linear_test.cpp behaviour/cuda/residual_test.cpp
  LINK dkfac::nn LABELS nn)
dkfac_gpu_test(nn.cuda.model
  SOURCES behaviour/cuda/model_state_test.cpp behaviour/cuda/model_failures_test.cpp behaviour/cuda/graphed_passes_test.cpp
  LINK dkfac::data dkfac::nn LABELS nn)
dkfac_gpu_test(nn.cuda.loss
  SOURCES backends/cuda/loss_test.cpp
  LINK dkfac::nn LABELS nn)
dkfac_gpu_test(nn.cuda.regularize
  SOURCES backends/cuda/regularize_test.cpp LINK dkfac::nn LABELS nn)
dkfac_gpu_test(nn.cuda.norm
  SOURCES behaviour/cuda/batch_norm_test.cpp behaviour/cuda/sample_gradients_test.cpp behaviour/cuda/layer_norm_test.cpp behaviour/cuda/embedding_test.cpp backends/cuda/pool_test.cpp
  LINK dkfac::nn LABELS nn)
dkfac_gpu_test(nn.cuda.fused
  SOURCES behaviour/cuda/fused_moments_test.cpp behaviour/cuda/fused_backward_test.cpp
          behaviour/cuda/fusion_choice_test.cpp
  LINK dkfac::nn LABELS nn)
set(cudnn_tests backends/cuda/conv_cudnn_test.cpp behaviour/cuda/conv_images_test.cpp)
if(DKFAC_HAVE_CUDNN)
  list(APPEND cudnn_tests backends/cuda/cudnn/compiled_plans_test.cpp)
endif()
dkfac_gpu_test(nn.cuda.cudnn
  SOURCES ${cudnn_tests}
  LINK dkfac::nn LABELS nn)
if(DKFAC_CUDA_EMULATED AND DKFAC_HAVE_CUDNN)
  dkfac_gpu_test(nn.cuda.emulated_cudnn
    SOURCES behaviour/cuda/emulated_cudnn_test.cpp behaviour/cuda/cudnn_failures_test.cpp
            backends/cuda/cudnn/split_sum_test.cpp behaviour/cuda/launches_test.cpp
    LINK dkfac::nn LABELS nn TIMEOUT 480)
  set_source_files_properties(behaviour/cuda/launches_test.cpp PROPERTIES COMPILE_DEFINITIONS
    "DKFAC_COUNTED_FILE=\"${PROJECT_SOURCE_DIR}/records/benchmarks/gpu/counted.csv\"")
endif()
dkfac_gpu_test(nn.cuda.models
  SOURCES behaviour/cuda/models_test.cpp behaviour/cuda/ekfac_models_test.cpp
  LINK dkfac::nn LABELS nn TIMEOUT 900)
dkfac_gpu_test(nn.cuda.training
  SOURCES behaviour/cuda/graphed_models_test.cpp behaviour/cuda/graphed_statistics_test.cpp behaviour/cuda/sample_fisher_test.cpp behaviour/cuda/shared_batch_norm_test.cpp behaviour/cuda/mixed_precision_test.cpp
  LINK dkfac::nn LABELS nn TIMEOUT 900)

# Plans of the real cuDNN, which need no device.
if(DKFAC_HAVE_CUDNN AND NOT DKFAC_CUDA_EMULATED)
  dkfac_test(nn.cudnn_plans
    SOURCES behaviour/cuda/cudnn_plans_test.cpp
    LINK dkfac::nn dkfac_cudnn dkfac_cuda ${CMAKE_DL_LIBS} GTest::gtest_main LABELS nn
    TIMEOUT 600)  # Half a minute of work, most of it NVRTC's.
  set_source_files_properties(behaviour/cuda/cudnn_plans_test.cpp PROPERTIES COMPILE_DEFINITIONS
    "DKFAC_DEVICES_DIR=\"${CMAKE_CURRENT_SOURCE_DIR}/cuda/devices\"")
  if(TARGET test_nn_cudnn_plans)  # Not where only tests of a device are built.
    add_library(dkfac_stand_in_driver MODULE cuda/stand_in_driver.cpp)
    set_target_properties(dkfac_stand_in_driver PROPERTIES OUTPUT_NAME cuda SUFFIX .so.1
      LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR}/stand_in_driver)
    add_dependencies(test_nn_cudnn_plans dkfac_stand_in_driver)
    set_property(TEST nn.cudnn_plans APPEND PROPERTY ENVIRONMENT
      "LD_LIBRARY_PATH=${CMAKE_CURRENT_BINARY_DIR}/stand_in_driver:$ENV{LD_LIBRARY_PATH}")
  endif()
endif()
