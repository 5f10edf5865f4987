"""What a CUDA recipe is: device code and its launch plan from a variant key and a point. Registered like a CPU recipe.

Every size is exact and baked as a constant, so that a kernel's parameters are pointers alone. Kernels accumulate in
float32, read and write up to 16 bytes a thread, and give the same bits on every run.
"""

from __future__ import annotations

from dataclasses import dataclass

from forge_tui.proposers.recipes.recipe import Point, Recipe, Source
from forge_tui.records.candidate import Draft
from forge_tui.records.card import VariantKey
from forge_tui.records.plan import VERSION, Plan, PlanArg, Step, Workspace

# Multiprocessors of the smallest and the largest device a plan with resident blocks is tuned for (H200: 132). A plan
# that asks for more blocks at once than a device holds is refused by the driver, and another point is tried.
MULTIPROCESSORS = 132
REGISTERS = 65_536  # of one multiprocessor, every architecture since Volta
SHARED_BYTES = 227 * 1024  # dynamic shared memory of one block on sm_90
NO_WORKSPACE = Workspace()


@dataclass(frozen=True)
class DeviceSource(Source):
    """Device code with its steps. `text` includes only card.h."""

    steps: tuple[Step, ...] = ()
    workspace: Workspace = NO_WORKSPACE


@dataclass(frozen=True)
class CudaRecipe(Recipe):
    """One operator family on CUDA devices. The thread limit of the CPU plays no part. `source` gives a DeviceSource."""

    def fits(self, key: VariantKey) -> str:
        if key.op not in self.ops:
            return f"{self.name} serves {', '.join(sorted(self.ops))}"
        devices = {t.device for t in (*key.tensors, *key.outputs)}
        if len(devices) != 1 or not devices.pop().startswith("cuda"):
            return "tensors are not on one CUDA device"
        if key.autocast:
            return f"autocast to {key.autocast} is active"
        if not key.exact:
            return "sizes vary: this kernel is built for exact sizes"
        return self.refuses(key)

    def render(self, key: VariantKey, point: Point) -> Draft:
        """The candidate of a point. It carries no gain estimate: only the judge's clock knows."""
        source = self.source(key, point)
        if not isinstance(source, DeviceSource):
            raise TypeError(f"recipe {self.name} gave no device source")
        return Draft(
            language="cuda",
            source=source.text,
            plan=Plan(VERSION, source.steps, source.workspace, None, {}, dict(point)),
            technique=source.technique,
            target=self.target,
            expected_gain=None,
            detail={"recipe": self.name, "point": dict(point)},
        )


def kernel_step(
    name: str,
    grid: int,
    threads: int,
    args: tuple[PlanArg, ...],
    *,
    cluster: int = 1,
    shared_bytes: int = 0,
    cooperative: bool = False,
    dependent_launch: bool = False,
) -> Step:
    """A one-dimensional launch with plain numbers."""
    return Step(
        "kernel",
        name,
        (str(grid), "1", "1"),
        (str(threads), "1", "1"),
        (str(cluster), "1", "1"),
        str(shared_bytes),
        cooperative,
        dependent_launch,
        args,
    )
