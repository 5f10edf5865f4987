"""One judge for one session: settings, workers that are kept, opened cards, measured ceilings.

Invariants: a card is tested before any candidate of it is; eager's workers are trusted and kept, run workers are
thrown away; every judgement gets its own buffers; the machine lock is held for everything that is timed against a
target and for nothing else.
"""

from __future__ import annotations

import hashlib
import os
import random
import secrets
import tempfile
from collections import OrderedDict
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import torch

from forge_tui.cast.native import cache_folder
from forge_tui.judge import environment, plumbing
from forge_tui.judge.buffers import Buffers
from forge_tui.judge.examine import fitting
from forge_tui.judge.floor import Rates, measure_rates
from forge_tui.judge.measure import TIMED
from forge_tui.judge.pool import TrialPool
from forge_tui.judge.sides import EagerSide
from forge_tui.judge.timing import batch_size, half_width, interleave, single_threaded
from forge_tui.machine.hold import Hold, hold
from forge_tui.records.card import Card
from forge_tui.records.judging import CardReady, JudgeHello, JudgeSettings
from forge_tui.records.problem import HarnessProblem, UserInputError
from forge_tui.records.verdict import Measurement
from forge_tui.sandbox.profile import Profile, detect

POOLS_KEPT = 4
POOL_BYTES = 384 << 20
NOISY = 0.10  # an A/A half-width that asks for another try, and is named when it stays
CONTROL_TRIES = 3
CONTROL_PAIRS = 60  # 20 leave the A/A interval of a 10 us call wider than most gains
RATE_TRIES = 3


@dataclass
class Opened:
    """A card that passed or failed its own tests, with what judging needs."""

    card: Card
    ready: CardReady
    seed: str
    nulls_line: str
    noise: float | None = None
    noise_pairs: int = 0


class Session:
    """State of the judge process."""

    def __init__(self, settings: JudgeSettings) -> None:
        if settings.device != "cpu":
            raise UserInputError(f"this judge serves the CPU; device {settings.device!r} has none yet: use device cpu")
        self.settings = settings
        torch.set_num_threads(settings.threads)
        self.scratch = Path(settings.scratch_dir)
        self.scratch.mkdir(parents=True, exist_ok=True)
        self.blobs = Path(settings.blob_dir)
        self.cache = _writable(cache_folder() / "native", self.scratch / "native")
        self.plumbing = plumbing.build(self.cache)
        self.profile: Profile = detect()
        self.environment = environment.describe(settings.threads)
        self._eager: dict[str, EagerSide] = {}
        self._pools: OrderedDict[str, TrialPool] = OrderedDict()
        self.opened: dict[str, Opened] = {}
        self._rates: Rates | None = None
        lock = settings.machine_lock or str(Path(tempfile.gettempdir()) / f"forge-tui-{os.getuid()}-cpu.lock")
        self.lock_path = Path(lock)

    def hello(self) -> JudgeHello:
        """Who judges; waits for the native loop's build."""
        native = self.eager("baseline").hello()
        profile = {"name": self.profile.name, "layers": self.profile.layers, "line": self.profile.line}
        return JudgeHello(torch.__version__, self.settings.device, profile, native, self.environment)

    def eager(self, name: str) -> EagerSide:
        """A kept worker: "baseline", or "control" for eager against eager. Restarted when it died."""
        known = self._eager.get(name)
        if known is None or not known.alive:
            known = self._eager[name] = EagerSide(self.cache, self.settings.threads)
        return known

    def alone(self) -> AbstractContextManager[Hold]:
        """The machine lock and a quiet moment."""
        return hold(self.lock_path, self.settings.other_cores)

    def rates(self) -> Rates:
        """Ceilings of the device, measured once."""
        if self._rates is None:
            for _ in range(RATE_TRIES):
                with self.alone() as held:
                    rates = measure_rates()
                    if held.quiet():
                        break
            else:
                held.insist()
            self._rates = rates
        return self._rates

    def pool(self, card: Card, seed: str) -> TrialPool:
        """Trials of a card under a seed; the same tensors however often they are made again."""
        key = f"{card.card_id} {seed}"
        known = self._pools.pop(key, None)
        if known is None:
            known = TrialPool(card, self.blobs, seed, memory_limit=POOL_BYTES)
        self._pools[key] = known
        while len(self._pools) > POOLS_KEPT:
            self._pools.popitem(last=False)
        return known

    def open_card(self, card: Card) -> CardReady:
        """Test the card: references, nulls, eager's time, A/A noise, floor. A card that fails is not usable."""
        if card.card_id in self.opened:
            return self.opened[card.card_id].ready
        first = self._rates is None
        rates = self.rates()
        extra = rates.measurements(self.settings.device) if first else ()
        seed = secrets.token_hex(16)
        floor = rates.floor_us(card)
        try:
            pool = self.pool(card, seed)
            with single_threaded():
                nulls = pool.nulls()
            eager_us, noise, rows = self._control(card, pool, max(CONTROL_PAIRS, self.settings.search_pairs), 2.0)
        except HarnessProblem as problem:
            ready = CardReady(card.card_id, False, True, str(problem), None, None, floor, (), extra)
            self.opened[card.card_id] = Opened(card, ready, seed, "")
            return ready
        noisy = [f"noisy machine: eager against itself differs by {noise:.0%}"] if noise > NOISY else []
        line = "; ".join([nulls.line, *pool.notes, *noisy])
        ready = CardReady(
            card.card_id, nulls.usable, pool.weak, line, eager_us, noise, floor, tuple(nulls.checks), (*extra, *rows)
        )
        self.opened[card.card_id] = Opened(card, ready, seed, nulls.line, noise, CONTROL_PAIRS)
        return ready

    def refine_noise(self, opened: Opened, pool: TrialPool) -> None:
        """Measure the A/A floor with a confirmation's effort, once per card: few pairs overstate it for short calls."""
        pairs = self.settings.confirm_pairs
        if opened.noise_pairs >= pairs:
            return
        _, noise, _ = self._control(opened.card, pool, pairs, self.settings.confirm_seconds / 2)
        opened.noise, opened.noise_pairs = noise, pairs

    def _control(
        self, card: Card, pool: TrialPool, pairs: int, limit_s: float
    ) -> tuple[float, float, tuple[Measurement, ...]]:
        """Eager's time and the A/A half-width: two eager workers as the two sides of ordinary pairs."""
        source = random.Random(secrets.randbits(64))
        buffers = Buffers(card.key, source.randrange(1 << 30))
        first, second = self.eager("baseline"), self.eager("control")
        try:
            fill(buffers, pool)
            method = first.open(card.key, buffers, self.settings.threads)
            second.open(card.key, buffers, self.settings.threads)
            for attempt in range(CONTROL_TRIES):
                with self.alone() as held:
                    batch = batch_size((first, second), buffers.sets)
                    measured = interleave(first, second, batch, buffers.sets, source, pairs, 3 * pairs, limit_s)
                    if held.quiet() and half_width(measured) <= NOISY:
                        break
                    if attempt == CONTROL_TRIES - 1:
                        held.insist()
        finally:
            buffers.close()
        eager_us = sorted(s.us for s in measured.baseline)[len(measured.baseline) // 2]
        low, ratio, high = measured.interval
        noise = half_width(measured)
        subject = card.card_id
        return (
            eager_us,
            noise,
            (
                Measurement("eager", subject, eager_us, "us", method),
                Measurement("aa", subject, ratio, "ratio", f"half-width {noise:.3f}", low, high),
            ),
        )

    def healthy(self) -> bool:
        """A small sum comes out right and the baseline's worker lives."""
        right = float(torch.arange(1000, dtype=torch.float64).sum()) == 499500.0
        return right and self.eager("baseline").alive

    def binary_path(self, blob: str, digest: str) -> Path:
        """The binary's file after its bytes were compared with their hash. Raises HarnessProblem."""
        path = self.blobs / blob[:2] / blob
        try:
            found = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError as error:
            raise HarnessProblem(f"the binary {blob[:12]} can't be read: {error.strerror}") from None
        if found != digest:
            raise HarnessProblem(f"the binary {blob[:12]} is damaged: its bytes don't match its hash")
        return path

    def close(self) -> None:
        for side in self._eager.values():
            side.kill()


def fill(buffers: Buffers, pool: TrialPool) -> list[int]:
    """Lay captured-like trials into all input sets; returns which trial lies in which set."""
    usable = [i for i in range(len(pool.trials)) if fitting(buffers.key, pool.trials[i].tensors)]
    named = [i for i in usable if pool.trials[i].name in TIMED] or usable
    if not named:
        raise HarnessProblem("no recorded call has the sizes of the card's key")
    at = [named[index % len(named)] for index in range(buffers.sets)]
    for index, trial in enumerate(at):
        buffers.write_set(index, pool.trials[trial].tensors)
    return at


def _writable(wanted: Path, otherwise: Path) -> Path:
    """The user's cache, so that a build is done once per machine, or the session's own folder."""
    for path in (wanted, otherwise):
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(path, os.W_OK):
            return path
    raise HarnessProblem(f"no folder for the judge's cache: {otherwise} can't be written")
