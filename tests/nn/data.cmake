# Data sets, sampling, augmentation, loading; the average of weights.
dkfac_test(nn.data SOURCES data/data_test.cpp data/idx_test.cpp data/cifar_test.cpp data/sampler_test.cpp
                           data/loader_test.cpp data/loader_augment_test.cpp data/augment_test.cpp ema_test.cpp
                           data/worker_pool_test.cpp data/mixup_test.cpp data/erase_test.cpp data/regularize_test.cpp
                           data/loader_allocation_test.cpp data/synthetic_photos_test.cpp ../support/heap_count.cpp
  LINK dkfac::nn ZLIB::ZLIB GTest::gtest_main LABELS nn threads INTERNALS)
dkfac_test(nn.images SOURCES data/resize_test.cpp data/photo_view_test.cpp data/photo_set_test.cpp
                             data/photo_facts_test.cpp data/rectangular_test.cpp
  LINK dkfac::nn GTest::gtest_main LABELS nn threads INTERNALS)
if(DKFAC_HAVE_JPEG)
  find_package(JPEG REQUIRED)  # An imported target is known in the folder that found it.
  dkfac_test(nn.jpeg SOURCES data/jpeg_test.cpp LINK dkfac::nn JPEG::JPEG GTest::gtest_main LABELS nn)
  dkfac_test(nn.photos SOURCES data/photo_loader_test.cpp data/photo_shards_test.cpp data/photo_corpus_test.cpp
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
