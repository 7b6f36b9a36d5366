#!/usr/bin/env python3
"""The comparison of docs/cifar.md over the steps of ResNet-9, in small.

Environment as for cli_support.py.
"""
import json
import unittest

from cli_support import REPOSITORY, Folder

SMALL = ("data.name=synthetic", "data.synthetic_size=32", "data.synthetic_channels=3",
         "data.synthetic_train=64", "data.synthetic_test=32", "train.global_batch=64",
         "model.width=2", "run.epochs=1")


class Steps(Folder):
    def test_one_command_compares_all_of_them(self):
        files = sorted((REPOSITORY.resolve() / "configs" / "resnet9-steps").glob("*.toml"))
        self.assertEqual(len(files), 11)
        done = self.dkfac("compare", *files, "--target", 0.94, "--out", "steps",
                          *(part for key in SMALL for part in ("--set", key)))
        self.assertEqual(done.returncode, 0, done.stderr)
        for file in files:
            self.assertRegex(done.stdout, rf"(?m)^step-{file.stem} +0 of 1 ")
            status = json.loads(next((self.dir / "steps" / f"step-{file.stem}").glob(
                "*/result.json")).read_text())["status"]
            self.assertEqual(status, "ok")
        page = (REPOSITORY / "docs" / "cifar.md").read_text()
        for file in files:
            self.assertIn(f"| `{file.stem}` |", page)


if __name__ == "__main__":
    unittest.main()
