#!/usr/bin/env python3
"""tools/gpu_pack.sh and tools/gpu_check.sh over programs, libraries and an nvidia-smi of its own.

Environment: DKFAC_REPOSITORY (the folder of its source).
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest

TOOLS = pathlib.Path(os.environ["DKFAC_REPOSITORY"]) / "tools"
SMI = """case $1 in
  *=name) echo Made ;; *=driver_version) echo 1.2 ;; *=compute_cap) echo 9.0 ;;
esac"""
# A program like GoogleTest's, which strip and ldd accept. It skips a test; as "slow" it takes DKFAC_SLEEP
# seconds, as "bench" it is a benchmark.
TEST = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int main(int count, char** arguments) {
  if (count > 1 && strcmp(arguments[1], "--gtest_list_tests") == 0) return 0;
  if (strstr(arguments[0], "bench")) return 0;
  const char* seconds = getenv("DKFAC_SLEEP");
  if (seconds && strstr(arguments[0], "slow")) sleep((unsigned)atoi(seconds));
  printf("[==========] 1 test ran\n");
  printf("x_test.cpp:1: Skipped\nneeds two devices\n\n[  SKIPPED ] A.B (0 ms)\n");
  return getenv("DKFAC_REQUIRE_GPU") == NULL;
}
"""


@unittest.skipUnless(shutil.which("cc") and shutil.which("ctest"), "needs a C compiler and ctest")
class Check(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = pathlib.Path(folder.name)
        self.write("bin/nvidia-smi", f"#!/bin/sh\n{SMI}\n").chmod(0o755)
        self.write("bin/ldconfig", "#!/bin/sh\n").chmod(0o755)  # The system has none of the libraries.
        self.wheels = self.dir / "site-packages" / "nvidia"
        for name in ("cu13/lib/libcudart.so.13", "cu13/lib/libcublas.so.13", "cu13/lib/libcusolver.so.12",
                     "cudnn/lib/libcudnn.so.9", "nccl/lib/libnccl.so.2"):
            self.write(self.wheels / name, "")
        self.env = {"PATH": f"{self.dir}/bin:{os.environ['PATH']}", "HOME": str(self.dir),
                    "PYTHONPATH": str(self.wheels.parent), "CUDA_HOME": str(self.dir / "none"),
                    "OUT": str(self.dir / "back")}

    def write(self, path, text):
        path = self.dir / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def start(self, tool, *args, **env):
        return subprocess.run(["bash", TOOLS / tool, *map(str, args)], cwd=self.dir, text=True, check=False,
                              capture_output=True, env={**self.env, **env})

    def check(self, *args, **env):
        return self.start("gpu_check.sh", "--out", self.dir / "out", "--build", self.dir / "build", *args,
                          **env)

    def pack(self, architectures="90"):
        """A pack of two tests, from a build folder that is gone afterwards."""
        build = self.dir / "made"
        self.write("test.c", TEST)
        lines = ""
        for name in ("quick", "slow"):
            program = build / "tests" / "core" / f"test_core_cuda_{name}"
            program.parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(["cc", "-o", program, self.dir / "test.c"], check=True)
            lines += (f'add_test([=[made.{name}]=] "{program}")\nset_tests_properties([=[made.{name}]=] PROPERTIES '
                      f'LABELS "made;gpu" RESOURCE_LOCK gpu ENVIRONMENT "A=1;B={TOOLS.parent}/x")\n')
        self.write(build / "CTestTestfile.cmake", lines)
        (build / "benchmarks").mkdir()
        shutil.copy(program, build / "benchmarks" / "bench_gpu_train")
        file = self.dir / "pack.tar.xz"
        done = self.start("gpu_pack.sh", "--build", build, "--out", file, "--architectures", architectures)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("programs: 3,", done.stdout)
        shutil.rmtree(build)
        return file

    def result(self, part):
        return json.loads((self.dir / "out" / "gpu_check.json").read_text())["parts"][part]

    def test_a_pack_runs_elsewhere(self):
        done = self.check("build", "tests", "--prebuilt", self.pack())
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn(f"libcudnn: {self.wheels}/cudnn/lib/libcudnn.so.9\n", done.stdout)
        self.assertEqual(self.result("build")["outcome"], "prebuilt, 3 programs")
        self.assertEqual(self.result("tests")["outcome"], "passed, 2 of them skipped")
        self.assertEqual(self.result("tests")["skipped"], ["A.B: needs two devices"] * 2)
        self.assertEqual([f.name for f in (self.dir / "back").iterdir()], ["gpu_check.tar.gz"])
        with tarfile.open(self.dir / "back" / "gpu_check.tar.gz") as archive:
            self.assertLessEqual({"./gpu_check.json", "./tests.log", "./build.log"}, set(archive.getnames()))

    def test_refuses_a_folder_that_is_not_its_own(self):
        self.write("out/tests/mine", "x")
        done = self.check("tests", "--emulated")
        self.assertEqual(done.returncode, 2, done.stdout + done.stderr)
        self.assertIn("choose another --out", done.stderr)
        self.assertTrue((self.dir / "out" / "tests" / "mine").exists())

    def test_lists_what_it_left(self):
        done = self.check("tests", "peers", "--limit", 6, "--prebuilt", self.pack(), DKFAC_SLEEP="60")
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertEqual(self.result("tests")["left"], ["made.slow"])
        self.assertIn("left: tools/gpu_check.sh tests --only '^(made.slow)$' --prebuilt ", done.stdout)
        self.assertRegex(done.stdout, f"left: tools/gpu_check.sh peers --prebuilt \\S* --out {self.dir}/out --build "
                                      f"{self.dir}/build --limit 6\n")
        done = self.check("tests", "--only", "^(made.slow)$", "--prebuilt", self.dir / "pack.tar.xz")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertNotIn("left:", done.stdout)

    def test_builds_where_the_programs_do_not_run(self):
        """Device code of another architecture. The build gets a CMake that prints its arguments and fails."""
        self.write("bin/cmake", '#!/bin/sh\necho "$@"\nexit 1\n').chmod(0o755)
        done = self.check("tests", "--prebuilt", self.pack("80"))
        self.assertEqual(done.returncode, 1)
        self.assertIn("do not run here: they are built for 80, the device has 90; building from source",
                      done.stderr)
        self.assertEqual(self.result("build")["outcome"], "failed")
        options = (self.dir / "out" / "build.log").read_text()
        for option in ("CMAKE_CUDA_ARCHITECTURES=90-real", f"DKFAC_NVIDIA_WHEELS={self.wheels}",
                       f"CUDA_cublas_LIBRARY={self.wheels}/cu13/lib/libcublas.so.13"):
            self.assertIn(f"-D{option} ", options)

    def test_profiles_two_steps(self):
        self.write("bin/nsys", '#!/bin/sh\necho nsys "$@"\n').chmod(0o755)
        done = self.check("--profile", "--only", "nsys", "--prebuilt", self.pack(), OUT="")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        for text in ("nsys profile -c cudaProfilerApi ", "--profile-step 41 ", "--profile-step 42 "):
            self.assertIn(text, done.stdout)
        self.assertEqual(self.result("profile")["outcome"], "2 right")
        self.assertTrue((self.dir / "out" / "gpu_check.tar.gz").exists())

    def test_sanitizer(self):
        self.write("bin/compute-sanitizer", """#!/bin/sh
echo '[==========] 1 test from 1 test suite ran.'
case "$*" in *slow*) echo '========= ERROR SUMMARY: 3 errors'; exit 9 ;; esac
echo '========= ERROR SUMMARY: 0 errors'
""").chmod(0o755)
        done = self.check("sanitizer", "--prebuilt", self.pack())
        self.assertEqual(done.returncode, 1)
        self.assertEqual(self.result("sanitizer")["outcome"], "clean in 1 programs, test_core_cuda_slow failed")
        self.assertIn("ERROR SUMMARY: 3 errors", done.stderr)
        done = self.check("sanitizer", "--only", "quick", "--prebuilt", self.dir / "pack.tar.xz")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_without_cudnn(self):
        (self.wheels / "cudnn/lib/libcudnn.so.9").unlink()
        done = self.check("tests")
        self.assertEqual(done.returncode, 1)
        self.assertIn("libcudnn: not found", done.stdout)
        for text in ("no libcudnn.so.9 was found", "DKFAC_NVIDIA_WHEELS", "--without-cudnn"):
            self.assertIn(text, done.stderr)
        self.assertFalse((self.dir / "out" / "gpu_check.json").exists())
        self.assertEqual(self.check("tests", "--without-cudnn").returncode, 1)
        self.assertEqual(self.result("tests")["outcome"], "not built")

    def test_wrong_arguments(self):
        for args, text in ((["tests", "--limit", "x"], "--limit takes seconds"),
                           (["--prebuilt"], "--prebuilt needs a value"),
                           (["tests", "--prebuilt", "none"], "there is no file none")):
            done = self.check(*args)
            self.assertEqual(done.returncode, 2)
            self.assertIn(text, done.stderr)


if __name__ == "__main__":
    sys.exit(unittest.main())
