# Common settings of dkfac's targets. None of them propagates to targets that link dkfac.

add_library(dkfac_private_flags INTERFACE)
set(warnings -Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Wnon-virtual-dtor
             -Woverloaded-virtual)
target_compile_options(dkfac_private_flags INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:${warnings}>"
  $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr;-Xcompiler=-Wall,-Wextra,-Wshadow>)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # False alarms of GCC 12 at -O3 inside std::string and std::optional.
  target_compile_options(dkfac_private_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict;-Wno-maybe-uninitialized>)
endif()
if(DKFAC_SANITIZE)
  target_compile_options(dkfac_private_flags INTERFACE
    -fsanitize=${DKFAC_SANITIZE} -fno-omit-frame-pointer)
  target_link_options(dkfac_private_flags INTERFACE -fsanitize=${DKFAC_SANITIZE})
  if(DKFAC_SANITIZE MATCHES "address" AND DKFAC_SANITIZE MATCHES "undefined")
    # Checks of a pointer at each use are two thirds of the time of compiling. AddressSanitizer finds those that are
    # dereferenced; nothing finds a cast to a wrong dynamic type. Hosts access memory at any address, and as_packs()
    # of core/shared/pack.h asserts what a device needs.
    target_compile_options(dkfac_private_flags INTERFACE
      -fno-sanitize=null,object-size,pointer-overflow,alignment,vptr)
  endif()
  if(DKFAC_SANITIZE MATCHES "undefined")
    # A position-independent program has a relocation for each pointer of each check, made whenever it starts.
    target_link_options(dkfac_private_flags INTERFACE
      $<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>:-no-pie>)
  endif()
endif()

# Device kernels, or their replacement in a build without CUDA (core/shared/kernel.h).
set(kernels without_cuda)
if(DKFAC_HAVE_CUDA)
  set(kernels with_cuda)
endif()
# Instruction sets that host loops can dispatch to (vectorized.h, core/shared/simd.h).
set(DKFAC_SIMD generic)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(DKFAC_SIMD x86)
endif()
target_include_directories(dkfac_private_flags INTERFACE
  ${PROJECT_SOURCE_DIR}/src/core/shared/${kernels} ${PROJECT_SOURCE_DIR}/src/core/shared/${DKFAC_SIMD})

option(DKFAC_UNITY "Compile sources a dozen at a time: faster from nothing, slower after a change" OFF)

# CMake excludes sources with their own flags or definitions from unity builds.
function(dkfac_unite target)
  if(DKFAC_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 12)
    # The anonymous namespace of a source is mistaken for that of a header.
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
  endif()
endfunction()

# Layers of the shared library (DkfacShared.cmake). They are compiled once for it and for the archives:
# hidden symbols do not matter in a static link.
set(DKFAC_SHARED_LAYERS core comm kfac optim c)

# How a layer of the shared library, or a part of one, is compiled.
function(dkfac_hide_symbols target)
  set_target_properties(${target} PROPERTIES
    POSITION_INDEPENDENT_CODE ON CXX_EXTENSIONS OFF VISIBILITY_INLINES_HIDDEN ON
    CXX_VISIBILITY_PRESET hidden CUDA_VISIBILITY_PRESET hidden)
endfunction()

# dkfac_library(LAYER [FOR_C] SOURCES ... [PUBLIC libs...] [PRIVATE libs...]) creates dkfac_LAYER and
# dkfac::LAYER from src/LAYER, with include/dkfac/LAYER as its public headers. FOR_C: these headers are
# in C, and programs that link it stay what they are.
function(dkfac_library layer)
  cmake_parse_arguments(ARG "FOR_C" "" "SOURCES;PUBLIC;PRIVATE" ${ARGN})
  add_library(dkfac_${layer} STATIC ${ARG_SOURCES})
  add_library(dkfac::${layer} ALIAS dkfac_${layer})
  set_target_properties(dkfac_${layer} PROPERTIES
    EXPORT_NAME ${layer} POSITION_INDEPENDENT_CODE ON CXX_EXTENSIONS OFF
    # A program has either libdkfac.so or archives (DkfacShared.cmake): CMake compares this property.
    INTERFACE_DKFAC_AS_SHARED_LIBRARY_OR_STATIC "static"
    COMPATIBLE_INTERFACE_STRING DKFAC_AS_SHARED_LIBRARY_OR_STATIC)
  if(layer IN_LIST DKFAC_SHARED_LAYERS)
    dkfac_hide_symbols(dkfac_${layer})
  endif()
  set(scope PUBLIC)
  if(ARG_FOR_C)
    set(scope PRIVATE)
  endif()
  target_compile_features(dkfac_${layer} ${scope} cxx_std_20)
  target_include_directories(dkfac_${layer}
    PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
           $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>
    PRIVATE ${PROJECT_SOURCE_DIR}/src)
  target_link_libraries(dkfac_${layer} PUBLIC ${ARG_PUBLIC}
                                       PRIVATE ${ARG_PRIVATE} $<BUILD_INTERFACE:dkfac_private_flags>)
  dkfac_unite(dkfac_${layer})
  set_property(GLOBAL APPEND PROPERTY DKFAC_LAYERS ${layer})
endfunction()

# dkfac_vectorised_sources(files...): loops over elements, which must vectorise. -fno-trapping-math ignores the
# floating-point exception flags, which would keep selections scalar; NaN keeps its meaning. No contraction, so that
# results are bit-identical on every instruction set. With sanitizers only -O1, because optimising instrumented loops
# takes minutes.
set(DKFAC_LOOP_OPTIMISATION "$<$<NOT:$<CONFIG:Debug>>:-O3>" CACHE STRING "Compile option of loops over elements")
if(DKFAC_SANITIZE)
  set(DKFAC_LOOP_OPTIMISATION -O1)
endif()
function(dkfac_vectorised_sources)
  set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS
    "${DKFAC_LOOP_OPTIMISATION};-fno-trapping-math;-fno-math-errno;-ffp-contract=off")
endfunction()

# dkfac_program(NAME SOURCES ... LINK libs...) adds an executable with the warnings of dkfac.
function(dkfac_program name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_LINK} dkfac_private_flags)
  set_target_properties(${name} PROPERTIES CXX_EXTENSIONS OFF)
  dkfac_unite(${name})
endfunction()
