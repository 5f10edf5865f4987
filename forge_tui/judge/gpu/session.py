"""One judge for one device and session: opened cards, measured ceilings, A/A noise; overrides what touches the device."""

from __future__ import annotations

import os
import random
import secrets
import statistics
import tempfile
from collections import OrderedDict
from contextlib import AbstractContextManager
from pathlib import Path

import torch

from forge_tui.judge import environment
from forge_tui.judge.floor import Rates
from forge_tui.judge.gpu.buffers import GpuBuffers, unsuited
from forge_tui.judge.gpu.eager import GpuEager
from forge_tui.judge.gpu.floor import measure_rates
from forge_tui.judge.gpu.measure import whole_batch
from forge_tui.judge.pool import TrialPool
from forge_tui.judge.session import CONTROL_TRIES, NOISY, Opened, Session, fill
from forge_tui.judge.sides import EagerSide
from forge_tui.judge.timing import half_width, interleave
from forge_tui.launch import driver
from forge_tui.launch.device import Device
from forge_tui.machine.hold import Hold, hold
from forge_tui.records.card import Card
from forge_tui.records.judging import CompileJob, JudgeHello, JudgeSettings
from forge_tui.records.problem import HarnessProblem, MachineProblem, UserInputError
from forge_tui.records.verdict import Measurement
from forge_tui.sandbox.profile import detect

# Of the device's memory: trials and references of one card, and of all opened ones. Making a large card's trials again
# for every candidate costs most of a minute.
POOL_SHARE = 0.2
POOLS_SHARE = 0.4
POOLS_KEPT = 16


def device_number(name: str) -> int:
    """ "cuda" and "cuda:0" are 0. Raises UserInputError."""
    kind, _, number = name.partition(":")
    if kind != "cuda" or not ((number.isascii() and number.isdigit()) or not number):
        raise UserInputError(f"device {name!r} is none that a judge serves: use cpu, cuda or cuda:N")
    return int(number or 0)


class GpuSession(Session):
    """State of a GPU's judge process. Raises UserInputError for a device that is not there."""

    def __init__(self, settings: JudgeSettings) -> None:
        number = device_number(settings.device)
        if not torch.cuda.is_available():
            raise UserInputError(f"torch {torch.__version__} sees no GPU for {settings.device}: use device cpu")
        if number >= torch.cuda.device_count():
            raise UserInputError(f"there is no {settings.device}: torch sees {torch.cuda.device_count()} GPUs")
        self.settings = settings
        torch.set_num_threads(settings.threads)
        torch.cuda.set_device(number)
        torch.zeros(1, device="cuda")  # torch makes the primary context; the driver calls below share it
        self.device = Device.open(driver.load(), number)
        self.scratch = Path(settings.scratch_dir)
        self.scratch.mkdir(parents=True, exist_ok=True)
        self.blobs = Path(settings.blob_dir)
        self.profile = detect()
        properties = torch.cuda.get_device_properties(number)
        self.environment = environment.describe(settings.threads) | {
            "gpu": properties.name, "target": self.device.target, "multiprocessors": properties.multi_processor_count,
            "l2_bytes": self.device.l2_bytes, "memory_mib": properties.total_memory >> 20, "cuda": torch.version.cuda,
        }  # fmt: skip
        self._eager = {}
        self._pools = OrderedDict()
        self._memory = properties.total_memory
        self.opened = {}
        self._rates = None
        lock = f"{settings.machine_lock or Path(tempfile.gettempdir()) / f'forge-tui-{os.getuid()}'}-cuda{number}"
        self.lock_path = Path(lock)

    def hello(self) -> JudgeHello:
        """Who judges."""
        profile = {"name": self.profile.name, "layers": self.profile.layers, "line": self.profile.line}
        line = f"CUDA graphs on {self.environment['gpu']}"
        return JudgeHello(torch.__version__, self.settings.device, profile, line, self.environment)

    def eager(self, name: str) -> EagerSide:
        """Eager has no worker here."""
        raise HarnessProblem(f"the GPU's judge has no {name} worker")

    def alone(self) -> AbstractContextManager[Hold]:
        """The device's lock. Other programs' load on the CPU does not matter here."""
        return hold(self.lock_path, None)

    def rates(self) -> Rates:
        """Ceilings of the device, measured once."""
        if self._rates is None:
            with self.alone():
                self._rates = measure_rates(self.device.number)
        return self._rates

    def pool(self, card: Card, seed: str) -> TrialPool:
        """Trials of a card under a seed, on the device."""
        key = f"{card.card_id} {seed}"
        known = self._pools.pop(key, None)
        if known is None:
            most = POOLS_SHARE * self._memory
            while len(self._pools) >= POOLS_KEPT or (self._pools and torch.cuda.memory_allocated() > most):
                self._pools.popitem(last=False)
            where = f"cuda:{self.device.number}"
            limit = int(POOL_SHARE * self._memory)
            known = TrialPool(card, self.blobs, seed, device=where, memory_limit=limit)
        self._pools[key] = known
        return known

    def _control(
        self, card: Card, pool: TrialPool, pairs: int, limit_s: float
    ) -> tuple[float, float, tuple[Measurement, ...]]:
        """Eager's time and the A/A half-width: two graphs of eager as the two sides of ordinary pairs."""
        wrong = unsuited(card.key)
        if wrong:
            raise HarnessProblem(wrong)
        source = random.Random(secrets.randbits(64))
        buffers = GpuBuffers(card.key, self.device, source.randrange(1 << 30))
        sides: list[GpuEager] = []
        try:
            fill(buffers, pool)
            sides += [GpuEager(card.key, buffers), GpuEager(card.key, buffers)]
            for _ in range(CONTROL_TRIES):
                with self.alone():
                    batch = whole_batch((sides[0], sides[1]), buffers.sets)
                    measured = interleave(sides[0], sides[1], batch, buffers.sets, source, pairs, 3 * pairs, limit_s)
                if half_width(measured) <= NOISY:
                    break
        finally:
            for side in sides:
                side.close()
            buffers.close()
        eager_us = statistics.median(s.us for s in measured.baseline)
        low, ratio, high = measured.interval
        noise = half_width(measured)
        rows = (
            Measurement("eager", card.card_id, eager_us, "us", sides[0].method),
            Measurement("aa", card.card_id, ratio, "ratio", f"half-width {noise:.4f}", low, high),
        )
        return eager_us, noise, rows

    def healthy(self) -> bool:
        """A small sum comes out right on the device."""
        try:
            right = float(torch.arange(1000, dtype=torch.float64, device="cuda").sum()) == 499500.0
            torch.cuda.synchronize(self.device.number)
        except RuntimeError as error:
            raise MachineProblem(f"the GPU does not answer: {str(error).splitlines()[0][:200]}") from None
        return right

    def close(self) -> None:
        self._pools.clear()


def opened_noise(opened: Opened) -> str:
    """The A/A floor in words."""
    return "no A/A control was run" if opened.noise is None else f"A/A half-width {opened.noise:.4f}"


def compile_baseline(session: Session, job: CompileJob) -> Measurement:
    """Unknown, with the reason."""
    return Measurement("compile", job.card_id, None, "us", "torch.compile is not timed per card on a GPU yet")
