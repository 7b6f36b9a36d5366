#!/usr/bin/env bash
# What the installed package promises beside its libraries: reasons, languages, pkg-config, and MPI for those alone that
# ask for it. Sourced by run.sh.

# configure NAME LANGUAGES LINES: a project of its own below $work/NAME.
configure() {
  mkdir -p "$work/$1"
  printf 'cmake_minimum_required(VERSION 3.25)\nproject(%s LANGUAGES %s)\n%s\n' "$1" "$2" "$3" >"$work/$1/CMakeLists.txt"
  "$cmake" -S "$work/$1" -B "$work/build/$1" -DCMAKE_PREFIX_PATH="$work/moved" -DCMAKE_CXX_COMPILER="$compiler" \
    -DCMAKE_BUILD_TYPE=Release >"$work/$1.log" 2>&1
}
# refused NAME LANGUAGES LINES TEXT: the configuration fails and says TEXT.
refused() {
  if configure "$1" "$2" "$3"; then
    echo "$1: it was not refused"
    exit 1
  fi
  says "$1.log" "$4"
}
says() {
  tr -s ' \n' ' ' <"$work/$1" | grep -oF -- "$2" || { cat "$work/$1" && echo "$1: it does not say: $2" && exit 1; }
}
# without_mpi PROGRAM: no MPI library is loaded.
without_mpi() {
  if ldd "$1" | grep libmpi; then
    echo "$1: loads MPI, which it does not use"
    exit 1
  fi
}

echo "== reasons"
refused static_in_c C "find_package(dkfac CONFIG REQUIRED COMPONENTS optim)" "enable CXX, or ask for COMPONENTS shared alone"
refused unknown CXX "find_package(dkfac CONFIG REQUIRED COMPONENTS nonsense)" "component nonsense: there is none of this name"
nn_targets=$(find "$work/moved" -name dkfac_nnTargets.cmake)
mv "$nn_targets" "$work"
refused networks CXX "find_package(dkfac CONFIG REQUIRED COMPONENTS nn)" "component nn: this dkfac was built with DKFAC_BUILD_NN=OFF"
configure optional CXX 'find_package(dkfac CONFIG REQUIRED OPTIONAL_COMPONENTS nn)
if(dkfac_nn_FOUND OR NOT dkfac_optim_FOUND)
  message(FATAL_ERROR "nn: ${dkfac_nn_FOUND}, optim: ${dkfac_optim_FOUND}")
endif()
message(STATUS "${dkfac_nn_NOT_FOUND_MESSAGE}")'
says optional.log "DKFAC_BUILD_NN=OFF"
mv "$work/dkfac_nnTargets.cmake" "$nn_targets"
refused dependency CXX 'set(CMAKE_DISABLE_FIND_PACKAGE_ZLIB ON)
find_package(dkfac CONFIG REQUIRED COMPONENTS data)' "component data: its dependency ZLIB was not found"
for library in JPEG PNG; do
  grep -qE "dkfac_find\(data \"(1|TRUE|ON)\" $library\)" "$(find "$work/moved" -name dkfacConfig.cmake)" || continue
  refused "data_$library" CXX "set(CMAKE_DISABLE_FIND_PACKAGE_$library ON)
find_package(dkfac CONFIG REQUIRED COMPONENTS data)" "component data: its dependency $library was not found"
done

echo "== a compiler below C++20"
for header in dkfac/optim/optimizer.h dkfac/comm/launch.h; do
  if echo "#include \"$header\"" | "$compiler" -std=c++17 -I"$work/moved/include" -fsyntax-only -xc++ - 2>"$work/cxx17"; then
    echo "$header: it was not refused"
    exit 1
  fi
  says cxx17 "dkfac needs C++20"
  [ "$(grep -c 'error:' "$work/cxx17")" -le 2 ] || { cat "$work/cxx17" && exit 1; }
done

echo "== a type that no tensor has"
printf '#include <vector>\n#include "dkfac/core/tensor_view.h"\nstd::vector<long> x(3);\nauto y = dkfac::view_of(x);\n' |
  "$compiler" -std=c++20 -I"$work/moved/include" -fsyntax-only -xc++ - 2>"$work/dtypes" && exit 1
says dtypes "dkfac has tensors of double, float, dkfac::bf16, dkfac::f16 and std::int32_t"

cases=(c)
if [ -n "$shared" ]; then
  cases+=(shared)
  echo "== libdkfac.so and the archives in one program"
  refused both CXX "find_package(dkfac CONFIG REQUIRED COMPONENTS nn shared)
file(WRITE main.cpp \"int main() {}\")
add_executable(both main.cpp)
target_link_libraries(both PRIVATE dkfac::dkfac dkfac::nn)" "DKFAC_AS_SHARED_LIBRARY_OR_STATIC"
fi
for component in "${cases[@]}"; do
  languages="C CXX"
  echo "== C99 and C++14 with COMPONENTS $component"
  configure "languages_$component" "$languages" "find_package(dkfac CONFIG REQUIRED COMPONENTS $component)
add_executable(cxx14 $here/cxx14.cpp)
add_executable(world $here/world.c)
set_target_properties(cxx14 world PROPERTIES C_STANDARD 99 C_EXTENSIONS OFF CXX_STANDARD 14 CXX_EXTENSIONS OFF)
foreach(program cxx14 world)
  target_link_libraries(\${program} PRIVATE dkfac::c)
endforeach()" || { cat "$work/languages_$component.log" && exit 1; }
  "$cmake" --build "$work/build/languages_$component"
  "$work/build/languages_$component/cxx14"
  without_mpi "$work/build/languages_$component/cxx14"
  "$work/build/languages_$component/world" self 1
  if [ -n "$mpi" ]; then
    "${mpiexec[@]}" "$work/build/languages_$component/world" mpi 2
  fi
done

if command -v pkg-config >/dev/null; then
  PKG_CONFIG_PATH=$(dirname "$(find "$work/moved" -name dkfac.pc)")
  export PKG_CONFIG_PATH
  export LD_LIBRARY_PATH=${PKG_CONFIG_PATH%/pkgconfig}
  for package in dkfac dkfac-static; do
    echo "== pkg-config $package"
    # shellcheck disable=SC2046
    cc -std=c99 "$examples/training_loop.c" -o "$work/$package" $(pkg-config --cflags --libs "$package") -lm
    "$work/$package" >/dev/null
    without_mpi "$work/$package"
  done
  [ -z "$shared" ] || ldd "$work/dkfac" | grep -o "libdkfac.so[.0-9]*" | head -1
  if [ -n "$mpi" ]; then
    echo "== pkg-config dkfac-mpi"
    # shellcheck disable=SC2046
    "$compiler" -std=c++20 "$here/with_mpi.cpp" -o "$work/with_mpi" $(pkg-config --cflags --libs dkfac-mpi)
    "${mpiexec[@]}" "$work/with_mpi"
  fi
fi

if [ -n "$shared" ] && [ -n "$mpi" ]; then
  echo "== dkfac::mpi, and libdkfac.so without it"
  configure cmake_mpi CXX "find_package(dkfac CONFIG REQUIRED COMPONENTS shared mpi)
add_executable(with_mpi $here/with_mpi.cpp)
target_link_libraries(with_mpi PRIVATE dkfac::mpi)"
  "$cmake" --build "$work/build/cmake_mpi"
  "${mpiexec[@]}" "$work/build/cmake_mpi/with_mpi"
  rm "$work/moved"/lib*/libdkfac_mpi.so*
  "$work/build/languages_shared/world" self 1
  OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=2 "$work/build/languages_shared/world" mpi 2 2>"$work/no_mpi" && exit 1
  says no_mpi "libdkfac_mpi.so.0.1, which has MPI, was not loaded"
fi
