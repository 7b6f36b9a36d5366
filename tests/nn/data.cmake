# Data sets, sampling, augmentation, loading; the average of weights.
dkfac_test(nn.data SOURCES data_test.cpp idx_test.cpp cifar_test.cpp sampler_test.cpp
                           loader_test.cpp loader_augment_test.cpp augment_test.cpp ema_test.cpp
                           worker_pool_test.cpp mixup_test.cpp erase_test.cpp regularize_test.cpp
                           loader_allocation_test.cpp synthetic_photos_test.cpp ../support/heap_count.cpp
  LINK dkfac::nn ZLIB::ZLIB GTest::gtest_main LABELS nn threads INTERNALS)
dkfac_test(nn.images SOURCES resize_test.cpp photo_view_test.cpp photo_set_test.cpp
                             photo_facts_test.cpp rectangular_test.cpp
  LINK dkfac::nn GTest::gtest_main LABELS nn threads INTERNALS)
if(DKFAC_HAVE_JPEG)
  find_package(JPEG REQUIRED)  # An imported target is known in the folder that found it.
  dkfac_test(nn.jpeg SOURCES jpeg_test.cpp LINK dkfac::nn JPEG::JPEG GTest::gtest_main LABELS nn)
  dkfac_test(nn.photos SOURCES photo_loader_test.cpp photo_shards_test.cpp photo_corpus_test.cpp
    LINK dkfac::nn JPEG::JPEG GTest::gtest_main LABELS nn threads)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  dkfac_program(photo_dump SOURCES photo_dump.cpp LINK dkfac::nn)
  foreach(oracle photo torchvision)
    add_test(NAME nn.${oracle}_oracle
             COMMAND Python3::Interpreter ${CMAKE_CURRENT_SOURCE_DIR}/${oracle}_oracle_test.py)
    set_tests_properties(nn.${oracle}_oracle PROPERTIES LABELS nn TIMEOUT 240 SKIP_RETURN_CODE 77
                         ENVIRONMENT PHOTO_DUMP=$<TARGET_FILE:photo_dump>)
  endforeach()
endif()
