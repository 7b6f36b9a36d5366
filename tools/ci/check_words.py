#!/usr/bin/env python3
"""Checks that private words which were replaced by the terms of the field do not return.

Each entry is a regular expression and what is written instead. Identifiers are checked in code and documents,
phrases in comments and documents. `--self-test` proves that the check can fail.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
SUFFIXES = {".h", ".hpp", ".cpp", ".cu", ".cuh", ".inc", ".md", ".py", ".sh", ".cmake", ".toml", ".txt"}
FOLDERS = ["include", "src", "python", "tests", "examples", "benchmarks", "tools", "cmake", "configs", "docs",
           "records"]
RECORDED = ("records/", "docs/comparison/", "docs/cifar/", "docs/staleness/", "docs/sweep/")
EXEMPT = {"tools/ci/check_words.py"}

WORDS = [  # (expression, replacement, expression of the paths it holds for)
    (r"\bVote\b|\bVoteResult\b|\b[Tt]he vote\b|\bvoted down\b", "StepFlags, StepAgreement; agreement on a step", ""),
    (r"\bBallots?\b|\bballots?\b", "FlagMessage", ""),
    (r"\bHeld::|enum class Held\b", "StateKind", ""),
    (r"\bcomm::Exchange\b|\bExchangePlan\b", "BucketedReduce, BucketPlan", ""),
    (r"\bMirror::(?:yes|no)\b|\bcomm::Mirror\b", "Upper, HostDevicePair", ""),
    (r"\b(?:Mpi|Tcp)?Lanes\b", "Transfers", r"^(src|tests|include)/\w*/?comm/"),
    (r"\b(?:Reduce|Gather|Broadcast|Header|Plain)Flow\b", "CollectivePhase", ""),
    (r"\bReception\b|\bStranger\b", "Listener, PendingConnection", ""),
    (r"\bDeviceNote\b", "DeviceReport", ""),
    (r"\bTimetable\w*|\btimetable\b", "RefreshSchedule", ""),
    (r"\bStatisticNote\b|\bexchange_notes\b", "RefreshDecision", ""),
    (r"\bspread_inverses\b", "stagger_inverses", ""),
    (r"\b[Ll]adder\b|\bclimb\w*", "robust inversion, its stages, fallback", ""),
    (r"\brungs?\b", "stage", r"^(?!python/dkfac/sweep/|tests/python/sweep/|docs/training\.md|src/app/)"),
    (r"\bjudge_statistic\b|\bask_damping\b", "check_finite, set_requested_damping", ""),
    (r"\bworker_fraction\b", "grad_worker_fraction", ""),
    (r"\brecords_stay\b", "records_valid_until_step", ""),
    (r"\bfused_statistics\b|\bNormStatistics\b", "fused_moments, NormMoments", ""),
    (r"\bfind_place\b|\bor_abort\b|\bsharers\b", "find_placement, abort_on_error, ranks_on_device", ""),
    (r"\bPhase(?:Timer|Seconds)\b|\bphase_seconds\b|\bphases_ms\b", "ActivityTimer, StepSeconds, activity_*", ""),
    (r"\bwait_share\b|\bshare_of_(?:sgemm|copy)\b", "fraction", ""),
    (r"\bBatchNormFisher\b|\bprecondition_batch_norm\b", "NormFisher, precondition_norm", ""),
    (r"\bMeetingPoint\b|\bas_it_is\b|\bread_kept\b", "Rendezvous, eager, read_cache_file", ""),
    (r"\bdamping\.normalization\b|\bbn_damping\b", "norm_damping", ""),
    (r"\bstaleness_alpha\b", "similarity", ""),
    (r"\bstatistics\.batch_norm\b|\boptimizer\.batch_norm\b|StatisticKind::batch_norm\b", "norm_fisher, norm", ""),
    (r"\b(?:interval|drift)_bn\b", "interval_norm, drift_norm", ""),
    (r"\b[Vv]ot(?:e|es|ed|ing)\b", "agreement on a step", r"^(src|include)/"),
    (r"\b(?:Element|Column)Slots\b|\bkSlots\b|\bslot_stride\b", "state, ColumnShares; a slot is of a reduction", ""),
    (r"(?<!comm::)\b[Ss]lots?\b", "buffer, state, share; a slot is of a reduction", r"^src/(core|data|nn|app)/"),
    (r"\bslots?\b", "field; a slot is of a reduction, or of a sweep's hosts", r"^python/dkfac/(?!sweep/)"),
    (r"\b(?:Device|Resident|Streamed|Gradient)Source\b|\bDeviceLoader::Source\b", "Producer, Reader", ""),
    (r"\bsource\b", "from, data; a source is where a data set or a text is read from",
     r"^(src|include/dkfac)/(core|kfac|optim|nn|c)/"),
    (r"\bstd::int(?:32|64)_t (?:[^;]*, )?steps?\b|\bauto steps?\b|\b(?:image|channel|row)_step\b|\bkBiasStep\b",
     "stride, most, each; a step updates the weights", r"^src/(core|data|nn/backends)/"),
    (r"\bRecord(?:Reader|Writer)\b|\bRecorded\b", "FieldReader, FieldWriter, CapturedGraph", r"^src/(data|core)/"),
    (r"\b(?:Step|Epoch|Loading)Record\b|\bapp/record/", "metrics, app/logging; K-FAC records activations", ""),
    (r"\bCallRecord\b", "CallDigest; K-FAC records activations", ""),
    (r"\bbackoff_?\.step\b", "poll; a step updates the weights", ""),
    (r"\b[Rr]ecordings?\b|\bunrecorded\b", "capture of device work; eager", r"^src/(core|nn)/"),
    (r"\blaunches_recorded\b|\bis_recorded\b|(?:counts_?|launches_?)(?:\(\))?(?:\.|->)recorded\b", "captured",
     r"^(include|src|python|tests)/"),
    (r"\bforgive_failures\b|\bnote_failed\b|\btake_diagonal\b|\bas_it_lies\b|\bpast_wire\b", "what it does", ""),
    (r"\bresp\.", "a sentence", ""),
    (r"(?<!:: )\b[Nn]obody\b|\b[Ss]omebody\b|\b[Ee]verybody\b|\b[Ww]hoever\b", "the caller, the host, a rank", ""),
    (r"\b(?:she|her|hers|herself)\b", "the caller", ""),
]


def check(files):
    """files: path -> text. A line for each word that has returned."""
    problems = []
    rules = [(re.compile(word), instead, re.compile(where)) for word, instead, where in WORDS]
    for path, text in sorted(files.items()):
        if path in EXEMPT or path.startswith(RECORDED):
            continue
        active = [rule for rule in rules if rule[2].search(path)]
        for number, line in enumerate(text.splitlines(), 1):
            for word, instead, _ in active:
                found = word.search(line)
                if found:
                    problems.append(f"{path}:{number}: '{found.group()}'; write: {instead}")
    return problems


def self_test():
    bad = {"src/kfac/a.h": "struct Vote {};", "docs/a.md": "what she has recorded", "src/comm/b.cpp": "TcpLanes lanes;",
           "src/kfac/inverse/c.h": "/// the first rung", "configs/a.toml": "spread_inverses = true",
           "src/app/d.cpp": '"curvature/interval_bn"', "src/optim/e.cpp": "bool vote = true;",
           "include/dkfac/c/k.h": "int64_t launches_recorded;",
           "src/data/f.h": "/// the slot of a batch", "src/core/h.h": "void copy(const T* source);",
           "src/nn/g.h": "struct GradientSource {};", "src/app/k.h": "struct StepRecord {};",
           "src/core/j.h": "const std::int64_t n = x.dim(1), step = 2;",
           "python/dkfac/torch/i.py": "for slot in layer.slots():"}
    good = {"python/dkfac/sweep/a.py": "for rung in rungs", "src/core/simd.h": "constexpr int Lanes = 8;",
            "records/tuning/README.md": "the vote", "docs/a.md": "flags of a step", "src/a.h": "voter_share",
            "src/optim/g.h": "std::vector<comm::Slot> slots;", "src/data/h.h": "const PhotoSource& source;",
            "src/nn/i.h": "/// four forms, with their sources",
            "src/core/k.h": "static_cast<std::uint32_t>(key.step)",
            "python/dkfac/torch/j.py": '__slots__ = ("x",)', "python/dkfac/sweep/j.py": "for slot in self._slots:"}
    for path, text in bad.items():
        if not check({path: text}):
            print(f"self-test: nothing found in {path}: {text}")
            return 1
    found = check(good)
    if found:
        print("self-test: " + "; ".join(found))
        return 1
    print(f"self-test: {len(bad)} planted words found, {len(good)} texts passed")
    return 0


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    paths = [p for folder in FOLDERS for p in (ROOT / folder).rglob("*") if p.is_file()]
    paths += list(ROOT.glob("*.md"))
    files = {p.relative_to(ROOT).as_posix(): p.read_text(errors="replace") for p in paths if p.suffix in SUFFIXES}
    problems = check(files)
    print("\n".join(problems) or f"{len(files)} files have no word that went")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
