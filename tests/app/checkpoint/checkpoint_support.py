"""What the tests of checkpoints share."""
import contextlib
import json
import pathlib
import struct
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from cli_support import DKFAC, SYNTHETIC, Folder  # noqa: E402

TABLE = []
for byte in range(256):
    for _ in range(8):
        byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
    TABLE.append(byte)


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def read_tensors(path):
    """Header and data of a safetensors file."""
    raw = path.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    return json.loads(raw[8:8 + size]), raw[8 + size:]


def write_tensors(path, header, data):
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def seal(checkpoint):
    """Makes the manifest fit the files, as an attacker or a careful editor would."""
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    for name, entry in manifest["files"].items():
        data = (checkpoint / name).read_bytes()
        entry.update(bytes=len(data), crc32c=f"{crc32c(data):08x}")
    del manifest["crc32c"]
    compact = json.dumps(manifest, separators=(",", ":")).encode()
    manifest["crc32c"] = f"{crc32c(compact):08x}"
    (checkpoint / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")


class CheckpointFolder(Folder):
    """Runs that save checkpoints, and where these lie."""

    def setUp(self):
        super().setUp()
        # Small: sums are taken in Python.
        self.config = self.write("tiny.toml", SYNTHETIC.format(model="lenet-bn", optimizer="sgd"))

    def steps(self, out):
        return sorted(int(p.name[5:]) for p in (self.dir / out / "checkpoints").glob("step-??????"))

    def newest(self, out):
        name = (self.dir / out / "checkpoints" / "latest").read_text().strip()
        return self.dir / out / "checkpoints" / name

    def good(self, done):
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def resume(self, out, *args):
        return self.dkfac("train", "--resume", self.dir / out, *args)

    @contextlib.contextmanager
    def running(self, *args):
        """A run whose first epoch is done; it does not outlive the block."""
        with subprocess.Popen([DKFAC, "train", *map(str, args)], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, cwd=self.dir) as process:
            try:
                process.stdout.readline()
                yield process
            finally:
                process.kill()

    def without_clock(self, out):
        return [{k: v for k, v in epoch.items() if "second" not in k}
                for epoch in self.result(out)["epochs"]]
