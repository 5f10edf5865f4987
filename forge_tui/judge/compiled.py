"""torch.compile's time for a card, beside eager's by the same pairs, in a process of its own with a limit.

Both sides run the same Python loop here, so torch.compile's guards and eager's argument parsing are both paid, as in
a model. Unknown with the reason when there is no compiled version.
"""

from __future__ import annotations

import random
import secrets

from forge_tui.judge.buffers import Buffers
from forge_tui.judge.session import Session, fill
from forge_tui.judge.sides import EagerSide
from forge_tui.judge.timing import batch_size, interleave, timing_record
from forge_tui.records.codec import to_json
from forge_tui.records.judging import CompileJob
from forge_tui.records.problem import HarnessProblem
from forge_tui.records.verdict import Measurement

REASONS = (
    ("Python.h", "no Python headers here, so torch.compile can't build its kernels: install the python3-dev package"),
    ("InvalidCxxCompiler", "torch.compile finds no C++ compiler"),
    ("did not answer", "torch.compile was not done within its limit"),
    ("no answer within", "torch.compile was not done within its limit"),
)


def compile_baseline(session: Session, job: CompileJob) -> Measurement:
    """Median us per call of torch.compile's version; value None with the reason in `line`."""
    opened = session.opened.get(job.card_id)
    if opened is None:
        raise HarnessProblem(f"card {job.card_id} was not opened")
    card, threads = opened.card, session.settings.threads
    source = random.Random(secrets.randbits(64))
    pool = session.pool(card, opened.seed)
    buffers = Buffers(card.key, source.randrange(1 << 30))
    compiled = EagerSide(session.cache, threads)
    compiled.limit_s = job.limit_s
    try:
        fill(buffers, pool)
        eager = session.eager("baseline")
        eager.open(card.key, buffers, threads, "python")
        compiled.open(card.key, buffers, threads, "compile")
        compiled.run(1, 0, (0, 0))  # compiles
        with session.alone():
            batch = batch_size((eager, compiled), buffers.sets)
            measured = interleave(eager, compiled, batch, buffers.sets, source, session.settings.search_pairs)
    except HarnessProblem as problem:
        line = next((text for mark, text in REASONS if mark in str(problem)), f"torch.compile failed: {problem}")
        return Measurement("compile", job.card_id, None, "us", line[:300])
    finally:
        compiled.kill()
        buffers.close()
    timing = timing_record(measured, "Python loop on both sides", opened.noise, threads)
    line = f"{timing.speedup:.2f}x over eager ({timing.baseline_us:.1f} us) by the same Python loop"
    return Measurement(
        "compile", job.card_id, timing.candidate_us, "us", line, timing.baseline_us / timing.high,
        timing.baseline_us / timing.low, {"timing": to_json(timing)},
    )  # fmt: skip
