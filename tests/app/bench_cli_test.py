#!/usr/bin/env python3
"""bench, info MODEL, compare --json and train --trace from outside.

Environment as for cli_support.py.
"""
import json
import os
import re
import unittest

from cli_support import SYNTHETIC, Folder

SMALL = ("--model", "lenet-bn", "--input", 12, 12, 1, "--batch", 4, "--steps", 2, "--warm-up", 1)


class Bench(Folder):
    def test_a_step_as_table_and_as_json(self):
        done = self.dkfac("bench", "step", *SMALL, "--optimizer", "sgd,kfac", "--json", "b.json")
        self.assertEqual(done.returncode, 0, done.stderr)
        for part in ("ms/step", "sgd", "kfac", "inverse", "roof: SGEMM",
                     "\nms/step of kfac: statistics every 1 and inverses every 1 steps\n"):
            self.assertIn(part, done.stdout)
        report = json.loads((self.dir / "b.json").read_text())
        self.assertTrue(report["correct"])
        self.assertIn("bench step", report["command"])
        self.assertEqual([r["optimizer"] for r in report["results"]], ["sgd", "kfac"])

    def test_the_parts_of_each_kind_of_step(self):
        small = [*SMALL[:-3], 4, "--warm-up", 0]
        done = self.dkfac("bench", "step", *small, "--optimizer", "kfac", "--json", "-",
                          "--set", "optimizer.statistics_interval=2",
                          "--set", "optimizer.inverse_interval=4")
        kinds = json.loads(done.stdout)["results"][0]["parts_ms_by_kind"]
        self.assertEqual(set(kinds), {"plain", "statistics", "statistics+inverse"})
        for part in ("A", "G", "batch norm", "average"):
            with_it = {kind for kind, parts in kinds.items() if parts[part] > 0}
            self.assertEqual(with_it, {"statistics", "statistics+inverse"}, part)
        for part in ("forward", "backward", "precondition"):
            self.assertGreater(min(kind[part] for kind in kinds.values()), 0, part)
        self.assertEqual([k for k in kinds if kinds[k]["inverse"] > 0], ["statistics+inverse"])

    def test_a_long_cycle_by_a_short_one(self):
        small = [*SMALL[:-3], 8, "--warm-up", 0]
        done = self.dkfac("bench", "step", *small, "--optimizer", "sgd,kfac", "--json", "-",
                          "--set", "optimizer.statistics_interval=10",
                          "--set", "optimizer.inverse_interval=100", "--cycle", "2,4")
        kfac = json.loads(done.stdout)["results"][1]
        kinds = kfac["ms_by_kind"]
        self.assertEqual({kind: found["count"] for kind, found in kinds.items()},
                         {"plain": 4, "statistics": 2, "statistics+inverse": 2})
        plain, statistics, inverse = (kinds[kind]["median"] for kind in
                                      ("plain", "statistics", "statistics+inverse"))
        self.assertAlmostEqual(kfac["ms_per_step"],
                               0.9 * plain + 0.09 * statistics + 0.01 * inverse, places=6)
        self.assertEqual((kfac["statistics_interval"], kfac["inverse_interval"]), (10, 100))

    def test_a_cycle_stands_for_intervals_that_a_training_chooses(self):
        done = self.dkfac("bench", "step", *SMALL[:-3], 4, "--warm-up", 0, "--optimizer", "kfac", "--json", "-",
                          "--cycle", "2,4")
        kfac = json.loads(done.stdout)["results"][0]
        self.assertEqual((kfac["statistics_interval"], kfac["inverse_interval"]), (2, 4))

    def test_json_alone_on_stdout(self):
        for kind in ("factors", "inverse"):
            done = self.dkfac("bench", kind, *SMALL, "--json", "-")
            self.assertEqual(json.loads(done.stdout)["benchmark"], kind)
        done = self.dkfac("bench", "comm", "--ranks", 2, "--max-bytes", 2000, "--steps", 2,
                          "--json", "-")
        self.assertEqual(json.loads(done.stdout)["ranks"], 2)

    def test_a_file_whose_name_is_no_text(self):
        name = os.fsdecode(b"b\xff.json")
        done = self.dkfac("bench", "comm", "--ranks", 2, "--max-bytes", 1024, "--steps", 1,
                          "--out", name)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("roof: SGEMM", done.stdout)
        command = json.loads((self.dir / name).read_text(encoding="utf-8"))["command"]
        self.assertIn("$'b\\xff.json'", command)  # As a shell reads it.

    def test_mistakes(self):
        self.expect_error(self.dkfac("bench", "everything"), 64, "everything")
        self.expect_error(self.dkfac("bench", "step", "--model", "nosuch"), 64, "nosuch")
        self.expect_error(self.dkfac("bench", "factors", *SMALL, "--ranks", 2), 64, "--ranks")
        self.expect_error(self.dkfac("bench", "step", *SMALL, "--cycle", "0,8"), 64, "--cycle")
        self.expect_error(self.dkfac("bench", "comm", "--max-bytes", 1023), 64, "--max-bytes",
                          "1024")
        self.expect_error(self.dkfac("bench", "comm", "--set", "nonsense=1"), 64, "nonsense=1",
                          "no effect on comm")
        self.expect_error(self.dkfac("bench", "comm", "--device", "cuda"), 64, "on the CPU")
        self.expect_error(self.dkfac("bench", "resnet50", self.config, "--device", "none", "--set", "run.threads=1"),
                          64, "run.device", '"none"')

    def test_options_of_another_benchmark(self):
        for kind, *options in (("comm", "--batch", 4), ("comm", "--cycle", "2,8"), ("step", "--max-bytes", 2048),
                               ("step", "recipe.toml"), ("inverse", "--data", "."), ("factors", "--optimizer", "sgd"),
                               ("resnet50", "--batch", 64), ("resnet50", "--input", 32, 32, 3)):
            with self.subTest(kind=kind, options=options):
                name = options[0] if len(options) > 1 else "config"
                self.expect_error(self.dkfac("bench", kind, *options), 64, name, "no effect on this benchmark")
        self.expect_error(self.dkfac("bench", "resnet50", "--steps", 3, "--epochs-fraction", 0.1), 64, "--steps",
                          "--epochs-fraction")


class Info(Folder):
    def test_of_a_model(self):
        done = self.dkfac("info", "resnet20", "--batch", 128)
        self.assertEqual(done.returncode, 0, done.stderr)
        for part in ("images 32x32x3", "128 images", "operations", "memory",
                     "20 layers with factors"):
            self.assertIn(part, done.stdout)

    def test_of_another_size(self):
        small = self.dkfac("info", "resnet50", "--input", 64, 64, 3, "--classes", 10)
        self.assertIn("images 64x64x3, 10 classes", small.stdout)
        self.assertIn("A up to 4608, G up to 2048", small.stdout)
        self.expect_error(self.dkfac("info", "resnet20", "--batch", 0), 64, "--batch")

    def test_options_of_another_topic(self):
        for topic, option, what in (([self.config], ["--batch", 99], "a model"),
                                    ([self.config], ["--input", 1, 2, 3], "a model"),
                                    ([self.config], ["--classes", 7], "a model"),
                                    (["resnet20"], ["--tflops", 3], "a configuration"),
                                    (["resnet20"], ["--ranks", 9], "a configuration"),
                                    (["resnet20"], ["--set", "lr.lr=1"], "a configuration"),
                                    (["config"], ["--ranks", 9], "a configuration"),
                                    ([], ["--batch", 99], "a model")):
            with self.subTest(topic=topic, option=option):
                self.expect_error(self.dkfac("info", *topic, *option), 64, option[0], what)


class Plan(Folder):
    def test_of_a_model(self):
        done = self.dkfac("plan", "resnet50", "--ranks", 64, "--recommend", 0.5, "--json", "plan.json")
        self.assertEqual(done.returncode, 0, done.stderr)
        plan = json.loads((self.dir / "plan.json").read_text())
        names = [row["name"] for row in plan["strategies"]]
        for name in ("sgd", "lars", "adamw", "muon", "kfac 1/1", "kfac 20/100", "kfac adaptive"):
            self.assertIn(name, names)
            self.assertIn(f"\n{name} ", done.stdout)
        for row in plan["strategies"]:
            self.assertAlmostEqual(sum(row["phases"].values()), row["seconds"], delta=1e-9)
            self.assertLess(0, row["memory_bytes"])
        self.assertIn("estimates", done.stdout)
        self.assertLessEqual(plan["advice"]["forecast"]["to_sgd"], 1.5)

    def test_of_what_no_device_holds(self):
        done = self.dkfac("plan", "resnet50", "--ranks", 64, "--batch", 100000, "--recommend", 0.05)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("no K-FAC that adds at most 5 % to the step of SGD fits into the 80 GB of one h100", done.stdout)
        self.assertRegex(done.stdout, r"\ntoo much: (\d+) of \1 rows .* 80 GB of one h100; use a smaller --batch\n")
        few = self.dkfac("plan", "resnet50", "--recommend", 1e-6).stdout
        self.assertIn("no K-FAC adds at most 0.0001 %", few)
        self.assertNotIn("too much", few)

    def test_of_a_file_on_many_ranks(self):
        done = self.dkfac("plan", self.config, "--ranks", 2, "--tflops", 0.05, "--scaling", "--json", "-")
        self.assertEqual(done.returncode, 0, done.stderr)
        plan = json.loads(done.stdout)
        self.assertGreater(plan["steps"], 0)
        self.assertEqual([at["ranks"] for at in plan["scaling"]], [2**k for k in range(13)])
        own = self.dkfac("plan", self.config, "--set", "optimizer.type=kfac", "--set",
                         "optimizer.statistics_interval=5", "--set", "optimizer.inverse_interval=5", "--device", "H100")
        self.assertIn("\nkfac 5/5 (configuration) ", own.stdout, own.stderr)
        self.assertIn(" of h100,", own.stdout)

    def test_without_the_images(self):
        photos = self.write("photos.toml", '[data]\nname = "image-folder"\n[model]\nname = "resnet50"\n'
                            '[train]\nglobal_batch = 64\n')
        done = self.dkfac("plan", photos, "--tflops", 50)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("as many as ImageNet has", done.stderr)
        self.assertNotIn("[load_data]", done.stderr)
        for command in ("plan", "info"):
            self.assertRegex(self.dkfac(command, "--help").stdout, r"(?s)one\s+rank.*all\s+ranks|all\s+ranks.*one\s+rank")

    def test_of_the_machine_at_hand(self):
        for words in (["step", *SMALL, "--cycle", "1,1", "--json", "step.json"],
                      ["comm", "--ranks", 2, "--steps", 2, "--max-bytes", 65536, "--json", "comm.json"]):
            done = self.dkfac("bench", *words)
            self.assertEqual(done.returncode, 0, done.stderr)
        comm = json.loads((self.dir / "comm.json").read_text())
        for entry in comm["collectives"]:  # A loaded machine may take longer for the shorter ones.
            entry["us"]["median"] = 20 + entry["bytes"] / 1000
        (self.dir / "comm.json").write_text(json.dumps(comm))
        plan = ["plan", "lenet-bn", *SMALL[2:6], "--ranks", 2, "--measured", "step.json"]
        done = self.dkfac(*plan, "comm.json", "--batch", 4, "--json", "-")
        self.assertEqual(done.returncode, 0, done.stderr)
        found = json.loads(done.stdout)
        step = json.loads((self.dir / "step.json").read_text())
        sgd = step["results"][0]["parts_ms_by_kind"]["plain"]
        phases = found["strategies"][0]["phases"]
        self.assertAlmostEqual(phases["backward"], sgd["backward"] / 1e3, delta=1e-9)
        self.assertEqual(found["collectives"], "host")
        self.assertRegex(found["device"], re.escape(step["machine"]["processor"]) + r", \d+ threads?(, \w+ kernels)?$")
        self.assertIn("rank was measured, with the diagonal blocks of 2 ranks", self.dkfac(*plan, "comm.json", "--batch", 4).stdout)
        nccl = self.dkfac(*plan, "comm.json", "--batch", 4, "--collectives", "nccl", "--json", "-")
        self.assertEqual(json.loads(nccl.stdout)["collectives"], "nccl")
        self.expect_error(self.dkfac(*plan, "--batch", 4), 64, "bench comm", "--inner")
        self.expect_error(self.dkfac(*plan, "comm.json", "--batch", 5), 64, "operations", "lenet-bn")

    def test_what_is_refused(self):
        for arguments, parts in ((["nonet"], ["nonet", "resnet50"]),
                                 (["resnet20", "--device", "abacus"], ["abacus", "h100"]),
                                 (["resnet20", "--device", "v100", "--precision", "bf16"], ["v100", "bf16", "f16"]),
                                 (["resnet20", "--json", "no/x.json"], ["no/x.json", "no folder"]),
                                 (["resnet20", "--set", "lr.lr=1"], ["--set"]),
                                 ([self.config, "--batch", 7], ["--batch"])):
            with self.subTest(arguments=arguments):
                self.expect_error(self.dkfac("plan", *arguments), 64, *parts)


class Outputs(Folder):
    def test_compare_as_json_and_markdown(self):
        sgd = self.write("plain.toml", SYNTHETIC.format(model="mlp", optimizer="sgd"))
        args = ("compare", self.config, sgd, "--seeds", 2, "--out", "c")
        done = self.dkfac(*args, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        comparison = json.loads(done.stdout)
        self.assertEqual(comparison["baseline"], "tiny")
        difference = comparison["groups"][1]["difference_to_baseline"]["final_accuracy"]
        self.assertEqual(difference["count"], 2)
        low, high = difference["confidence_95"]
        self.assertLessEqual(low, difference["mean"])
        self.assertLessEqual(difference["mean"], high)
        done = self.dkfac(*args, "--markdown", "--force")
        self.assertTrue(done.stdout.startswith("| configuration |"), done.stdout)
        self.assertIn("\u00b1", done.stdout)
        self.expect_error(self.dkfac(*args, "--markdown", "--json"), 64, "--json")

    def test_compare_refuses_other_communication(self):
        other = self.write("other.toml", SYNTHETIC.format(model="mlp", optimizer="sgd").replace(
            "[run]", "[run]\ncomm_timeout_s = 60"))
        args = ("compare", self.config, other, "--quiet", "--out", "c")
        self.expect_error(self.dkfac(*args), 64,
                          "run.comm_timeout_s is 120.0 in 'tiny' and 60.0 in 'other'", "--set")
        self.assertFalse((self.dir / "c").exists())
        done = self.dkfac(*args, "--set", "run.comm_timeout_s=90")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_trace(self):
        done = self.train("t", "--trace", "--quiet")
        self.assertEqual(done.returncode, 0, done.stderr)
        names = {event["name"] for event in json.loads((self.dir / "t/trace.json").read_text())}
        self.assertLessEqual({"data", "forward", "backward", "statistics", "inverse", "update",
                              "evaluation"}, names)
        self.train("t", "--quiet", "--force")
        self.assertFalse((self.dir / "t" / "trace.json").exists(), "that of another run")


if __name__ == "__main__":
    unittest.main()
