# Layers on a device, and their kernels as any compiler takes them.
dkfac_test(nn.functors
  SOURCES elementwise_functors_test.cpp
          conv_functors_test.cpp conv_cudnn_functors_test.cpp
          loss_functors_test.cpp
          image_functors_test.cpp
          column_functors_test.cpp norm_signs_functors_test.cpp pool_functors_test.cpp
          regularize_functors_test.cpp
  LINK dkfac::nn GTest::gtest_main LABELS nn INTERNALS)
dkfac_gpu_test(nn.cuda.elementwise
  SOURCES cuda/activation_test.cpp
  LINK dkfac::nn LABELS nn INTERNALS)
dkfac_gpu_test(nn.cuda.products
  SOURCES cuda/conv_products_test.cpp cuda/linear_test.cpp cuda/residual_test.cpp
  LINK dkfac::nn LABELS nn INTERNALS)
dkfac_gpu_test(nn.cuda.model
  SOURCES cuda/model_state_test.cpp cuda/model_failures_test.cpp cuda/graphed_passes_test.cpp
  LINK dkfac::nn LABELS nn INTERNALS)
dkfac_gpu_test(nn.cuda.loss
  SOURCES cuda/loss_test.cpp
  LINK dkfac::nn LABELS nn INTERNALS)
dkfac_gpu_test(nn.cuda.device_data
  SOURCES cuda/device_data_test.cpp cuda/regularize_test.cpp
  LINK dkfac::nn LABELS nn threads INTERNALS)
dkfac_gpu_test(nn.cuda.norm
  SOURCES cuda/batch_norm_test.cpp cuda/pool_test.cpp
  LINK dkfac::nn LABELS nn INTERNALS)
dkfac_gpu_test(nn.cuda.fused
  SOURCES cuda/fused_statistics_test.cpp cuda/fused_backward_test.cpp
  LINK dkfac::nn LABELS nn INTERNALS)
dkfac_gpu_test(nn.cuda.cudnn
  SOURCES cuda/conv_cudnn_test.cpp cuda/conv_images_test.cpp
  LINK dkfac::nn LABELS nn INTERNALS)
if(DKFAC_CUDA_EMULATED AND DKFAC_HAVE_CUDNN)
  dkfac_gpu_test(nn.cuda.emulated_cudnn
    SOURCES cuda/emulated_cudnn_test.cpp cuda/cudnn_failures_test.cpp
    LINK dkfac::nn LABELS nn INTERNALS)
endif()
dkfac_gpu_test(nn.cuda.models
  SOURCES cuda/models_test.cpp cuda/ekfac_models_test.cpp
  LINK dkfac::nn LABELS nn INTERNALS TIMEOUT 900)
dkfac_gpu_test(nn.cuda.training
  SOURCES cuda/graphed_models_test.cpp cuda/mixed_precision_test.cpp
  LINK dkfac::nn LABELS nn INTERNALS TIMEOUT 900)

# Plans of the real cuDNN, which need no device.
if(DKFAC_HAVE_CUDNN AND NOT DKFAC_CUDA_EMULATED)
  dkfac_test(nn.cudnn_plans
    SOURCES cuda/cudnn_plans_test.cpp
    LINK dkfac::nn dkfac_cudnn dkfac_cuda ${CMAKE_DL_LIBS} GTest::gtest_main LABELS nn INTERNALS
    TIMEOUT 600)  # Half a minute of work, most of it NVRTC's.
  set_source_files_properties(cuda/cudnn_plans_test.cpp PROPERTIES COMPILE_DEFINITIONS
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
