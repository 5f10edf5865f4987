"""Can the judge's timing be believed? torch's own kernel as a candidate must tie, one slowed by 3% must be told apart.

    python tests/bench/timing.py [runs] [machine lock]

Each run judges both as a confirmation (fresh worker, seeds and placement) and prints the interval. Needs a quiet machine.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

import torch

sys.path[:0] = [str(Path(__file__).resolve().parents[2]), str(Path(__file__).resolve().parents[1] / "judge")]

import judge_cards as cards  # noqa: E402
import judge_kernels  # noqa: E402

from forge_tui.judge.judgement import Judgement  # noqa: E402
from forge_tui.judge.session import Session  # noqa: E402
from forge_tui.records.boot import PACKAGE  # noqa: E402
from forge_tui.records.judging import JudgeSettings  # noqa: E402

ROOT = Path(torch.__file__).parent
# torch's kernel behind the C entry. slowdown: share of its own time that is spent spinning afterwards.
OWN = r"""
#undef N
#undef X
#undef Y
#include <ATen/ops/from_blob.h>
#include <ATen/ops/gelu.h>
#include <time.h>
static long now() { timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1000000000L + t.tv_nsec; }
static at::Tensor view(const forge_tensor& t) {
  return at::from_blob(t.data, at::IntArrayRef(t.sizes, t.ndim), at::IntArrayRef(t.strides, t.ndim), at::kFloat);
}
extern "C" int forge_launch(const forge_args* a) {
  long start = now();
  { c10::InferenceMode guard; at::Tensor out = view(a->outputs[0]); at::gelu_out(out, view(a->inputs[0]), "tanh"); }
  long end = start + long((now() - start) * SLOW);
  while (SLOW > 1.0 && now() < end) {}
  return 0;
}
"""


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    lock = sys.argv[2] if len(sys.argv) > 2 else ""
    with tempfile.TemporaryDirectory() as scratch:
        blobs = Path(scratch) / "blobs"
        session = Session(JudgeSettings(str(blobs), scratch, sys.executable, str(PACKAGE), machine_lock=lock))
        print(session.hello().native)
        card = cards.gelu(blobs)
        ready = session.open_card(card)
        print(f"eager {ready.eager_us:.1f} us, A/A half-width {ready.noise:.4f}")
        for name, factor, wanted in (("torch's own kernel", 1.0, "same"), ("the same, 3% slower", 1.03, "slower")):
            found = [_judge(session, card, blobs, factor) for _ in range(runs)]
            good = sum(verdict == wanted for verdict, _ in found)
            print(f"{name}: {wanted!r} in {good} of {runs}; median ratio {statistics.median(r for _, r in found):.4f}")
        session.close()


def _judge(session: Session, card: cards.Card, blobs: Path, factor: float) -> tuple[str, float]:
    include = (f"-I{ROOT / 'include'}", "-std=c++20", f"-DSLOW={factor}")
    link = (f"-L{ROOT / 'lib'}", "-ltorch_cpu", "-lc10", f"-Wl,-rpath,{ROOT / 'lib'}")
    # torch in the worker needs more system calls and its own folder: our own code, so it may.
    report = {"worker": {"strict": False, "read": [str(ROOT)]}}
    job = judge_kernels.job(card, OWN, blobs, confirm=True, report=report, compile_flags=include, link_flags=link)
    verdict = Judgement(session, job, lambda **_: None, installed_too=False).run()
    if verdict.timing is None:
        print("  rejected:", verdict.problem)
        return "rejected", 0.0
    t = verdict.timing
    print(
        f"  {t.verdict:7} {t.speedup:.4f} [{t.low:.4f}, {t.high:.4f}] {t.baseline_us:.1f} / {t.candidate_us:.1f} us, {t.pairs} pairs"
    )
    return t.verdict, t.speedup


if __name__ == "__main__":
    main()
