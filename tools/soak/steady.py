"""A training that runs all the time, is frozen at times but never ended, and whose memory is measured."""
import signal
import statistics
import subprocess
import time

import job
import launch

EVERY_S = 2
LEAST_SAMPLES = 16  # Fewer are not judged.
SLACK = 1 << 20


class Steady:
    def __init__(self, work, dkfac):
        # Long epochs, as a result for each is kept.
        keys = ["run.epochs=1000000", "run.log_interval=0", "checkpoint.every_steps=50", "data.synthetic_train=65536"]
        words = [dkfac, "train", str(work / "soak.toml"), "--out", str(work / "steady"), "--quiet", "--ranks", "2"]
        self.process = subprocess.Popen(["nice", *words, *(w for key in keys for w in ("--set", key))],
                                        env=launch.environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.samples, self.next, self.freezes = [], time.monotonic() + EVERY_S, 0

    def look(self, draw):
        """Called often: measures, and freezes it at times for a moment."""
        if time.monotonic() < self.next:
            return
        self.next = time.monotonic() + EVERY_S
        found = job.resident(self.process.pid)
        if found is not None and self.process.poll() is None:
            self.samples.append(found)
        if draw.random() < 0.1:
            self.process.send_signal(signal.SIGSTOP)
            time.sleep(0.2)
            self.process.send_signal(signal.SIGCONT)
            self.freezes += 1

    def end(self):
        """Its part of the record; `grown` is None where it ran too briefly to tell."""
        alive = self.process.poll() is None
        self.process.terminate()
        self.process.wait()
        return {"alive": alive, "samples": len(self.samples), "freezes": self.freezes, **growth(self.samples)}


def growth(samples):
    """Medians of the second and of the last quarter of the samples; the first is a warm-up."""
    quarter = len(samples) // 4
    if len(samples) < LEAST_SAMPLES:
        return {"grown": None}
    before, after = (int(statistics.median(part)) for part in (samples[quarter:2 * quarter], samples[-quarter:]))
    return {"bytes_before": before, "bytes_after": after, "grown": after > before + SLACK + before // 100}
