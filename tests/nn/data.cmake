# Data sets, sampling, augmentation, loading; the average of weights.
dkfac_test(nn.data SOURCES data_test.cpp idx_test.cpp cifar_test.cpp sampler_test.cpp
                           loader_test.cpp loader_augment_test.cpp augment_test.cpp ema_test.cpp
                           loader_allocation_test.cpp
  LINK dkfac::nn ZLIB::ZLIB GTest::gtest_main LABELS nn INTERNALS)
# Its operator delete frees what its operator new took from malloc; GCC may take that for a mismatch.
set_source_files_properties(loader_allocation_test.cpp PROPERTIES
  COMPILE_OPTIONS -Wno-mismatched-new-delete)
