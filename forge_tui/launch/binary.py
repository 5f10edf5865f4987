"""What is loaded: one cubin (CUDA) or a zip of cubins with report.json (Triton), as one entry per kernel step of the plan."""

from __future__ import annotations

import io
import json
import zipfile
from dataclasses import dataclass
from typing import Any

from forge_tui.records.plan import Plan
from forge_tui.records.problem import Problem

ELF_MAGIC = b"\x7fELF"
MOST_BYTES = 256 * 1024 * 1024  # of one archive, unpacked


@dataclass(frozen=True)
class Entry:
    """The function of one kernel step.

    image: index into `Image.cubins`. symbol: its name in there. scratch: bytes of global and of profiling scratch that
    each program of a Triton kernel wants behind its other parameters, None for a kernel that takes no such pointers.
    block, shared_bytes, cluster: what the binary was built for; 0 where the plan says it.
    """

    image: int
    symbol: str
    scratch: tuple[int, int] | None = None
    scratch_align: int = 1
    block: int = 0
    shared_bytes: int = 0
    cluster: int = 0


@dataclass(frozen=True)
class Image:
    cubins: tuple[bytes, ...]
    entries: tuple[Entry, ...]


def read_image(data: bytes, plan: Plan) -> Image | Problem:
    """Entries of the plan's kernel steps, in their order."""
    steps = [step for step in plan.steps if step.kind == "kernel"]
    if data[:4] == ELF_MAGIC:
        return Image((data,), tuple(Entry(0, step.kernel) for step in steps))
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if sum(info.file_size for info in archive.infolist()) > MOST_BYTES:
                return _bad(f"the archive is larger than {MOST_BYTES} bytes")
            kernels = json.loads(archive.read("report.json"))["kernels"]
            if [k["name"] for k in kernels] != [step.kernel for step in steps]:
                return _bad("the archive was built for other steps than the plan's")
            cubins = tuple(archive.read(k["file"]) for k in kernels)
            return Image(cubins, tuple(_entry(i, k) for i, k in enumerate(kernels)))
    except (zipfile.BadZipFile, KeyError, TypeError, ValueError, OSError) as error:
        return _bad(f"neither a cubin nor an archive of cubins ({error})")


def _entry(index: int, k: dict[str, Any]) -> Entry:
    return Entry(
        index, str(k["symbol"]), (int(k["global_scratch"]), int(k["profile_scratch"])), max(1, int(k["global_scratch_align"])),
        int(k["block"]), int(k["shared"]), int(k["num_ctas"]),
    )  # fmt: skip


def _bad(line: str) -> Problem:
    return Problem("candidate", "load error", line)
