"""The run worker: our interpreter, standard library and ctypes, sandboxed, one per candidate.

Order: map the judge's buffers, start the OpenMP team, probe the sandbox's canaries, lock down, and only then load
the candidate, so that its constructors already run confined. Then serve requests. Holds no expected output, no
seed, no tolerance, no key. Everything it replies is a claim.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import socket
from typing import Any

from forge_tui.judge import plumbing
from forge_tui.judge.wire import read_request, take_fds
from forge_tui.records.frames import encode
from forge_tui.sandbox import probe, stage2


class Mapped:
    """The judge's arenas in this process: inputs read-only, outputs and workspace writable."""

    def __init__(self, fds: list[int], sizes: dict[str, int]) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._libc.mmap.restype = ctypes.c_void_p
        self._libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
        both = mmap.PROT_READ | mmap.PROT_WRITE
        self.base = {
            name: self._map(fd, sizes[name], mmap.PROT_READ if name == "in" else both)
            for name, fd in zip(("in", "out", "work"), fds, strict=True)
        }
        for fd in fds:
            os.close(fd)

    def _map(self, fd: int, size: int, protection: int) -> int:
        populate = 0x8000  # MAP_POPULATE: first touch is nobody's cost
        address = self._libc.mmap(None, size, protection, mmap.MAP_SHARED | populate, fd, 0)
        if address is None or address == ctypes.c_void_p(-1).value:
            raise OSError(ctypes.get_errno(), "mapping a test buffer failed")
        return int(address)


class Runner:
    """The candidate behind the plumbing's loop."""

    def __init__(self, library: ctypes.CDLL, layout: dict[str, Any], base: dict[str, int]) -> None:
        self.library = library
        self._keep: list[Any] = []
        keep = self._keep
        sets, slots = layout["input_at"], layout["slot_at"]
        inputs = [
            plumbing.tensor(base["in"] + offset, t["sizes"], t["strides"], t["dtype"], keep)
            for places in sets
            for offset, t in zip(places, layout["inputs"], strict=True)
        ]
        mutated = layout["mutates"]
        fresh = layout["slots"][: len(layout["slots"]) - len(mutated)]
        outputs = [plumbing.tensor(0, t["sizes"], t["strides"], t["dtype"], keep) for t in fresh]
        scalars = [plumbing.scalar(s["kind"], s["value"], keep) for s in layout["scalars"]]
        places = [base["out"] + offset for slot in slots for offset in slot]
        self._sets = len(sets)
        self._workspace = base["work"] + layout["workspace"][0]
        self.loop = plumbing.Loop(
            n_sets=len(sets), n_slots=len(slots), n_inputs=len(layout["inputs"]), n_outputs=len(fresh),
            n_scalars=len(scalars), n_mutated=len(mutated), threads=layout["threads"], zeroed=int(layout["zeroed"]),
            inputs=self._array(plumbing.Tensor, inputs), outputs=self._array(plumbing.Tensor, outputs),
            output_bytes=self._array(ctypes.c_int64, layout["slot_bytes"]),
            scalars=self._array(plumbing.Scalar, scalars),
            mutated=self._array(ctypes.c_int32, mutated),
            mutated_bytes=self._array(ctypes.c_int64, layout["slot_bytes"][len(fresh):]),
            slots=self._array(ctypes.c_void_p, places),
            workspace_bytes=layout["workspace"][1], workspace_alignment=layout["workspace_alignment"],
            prepared_bytes=layout["prepared_bytes"],
        )  # fmt: skip
        self._scratch = self._memory([layout["slot_bytes"][len(fresh) + i] for i in range(len(mutated))])
        wanted = layout["prepared_bytes"]
        self._prepared = self._memory([wanted] * self._sets) if wanted else None

    def _array(self, kind: Any, values: list[Any]) -> Any:
        array = (kind * max(1, len(values)))(*values)
        self._keep.append(array)
        return ctypes.cast(array, ctypes.POINTER(kind))

    def _memory(self, sizes: list[int]) -> Any:
        raw = [ctypes.create_string_buffer(size + 64) for size in sizes]
        self._keep += raw
        addresses = [(ctypes.addressof(block) + 63) // 64 * 64 for block in raw]
        return (ctypes.c_void_p * max(1, len(sizes)))(*addresses)

    def load(self, path: str) -> str:
        """Load the candidate; the reason why not, or ""."""
        try:
            candidate = ctypes.CDLL(path, mode=os.RTLD_NOW | os.RTLD_LOCAL)
            self.loop.launch = ctypes.cast(candidate.forge_launch, ctypes.c_void_p)
            if self._prepared is not None:
                self.loop.prepare = ctypes.cast(candidate.forge_prepare, ctypes.c_void_p)
        except (OSError, AttributeError) as error:
            return str(error)[:400]
        self._keep.append(candidate)
        return ""

    def once(self, request: dict[str, Any]) -> dict[str, Any]:
        prepared = self._prepared[0] if self._prepared is not None else None
        code = self.library.forge_once(
            ctypes.byref(self.loop), request["set"], request["slot"], self._workspace, prepared
        )
        return {"status": "ok", "code": code}

    def batch(self, request: dict[str, Any]) -> dict[str, Any]:
        ns, prepare_ns = ctypes.c_int64(), ctypes.c_int64()
        code = self.library.forge_batch(
            ctypes.byref(self.loop), request["n"], request["first"], request["keep_from"], request["keep_to"],
            self._prepared, self._scratch, ctypes.byref(ns), ctypes.byref(prepare_ns),
        )  # fmt: skip
        if code == plumbing.NO_MEMORY:
            return {"status": "no memory", "line": "no memory for the outputs of a call"}
        return {"status": "ok", "code": code, "ns": ns.value, "prepare_ns": prepare_ns.value}


def main() -> None:
    sock = socket.socket(fileno=int(os.environ["FORGE_FD"]))
    runner: Runner | None = None
    while True:
        try:
            request = read_request(sock)
        except EOFError:
            return
        verb = request["do"]
        reply: dict[str, Any] = {"status": "ok"}
        if verb == "map":
            mapped = Mapped(take_fds(sock, 3), request["layout"]["sizes"])
            library = plumbing.load(request["plumbing"])
            library.forge_watch_signals(mapped.base["work"] + request["layout"]["status"])
            for path in request["warm"]:
                if library.forge_warm_openmp(path.encode(), request["layout"]["threads"]) and path:
                    reply = {"status": "failed", "line": f"no OpenMP runtime at {path}"}
            runner = Runner(library, request["layout"], mapped.base)
            reply.setdefault("facts", mapped.base)
        elif runner is None:
            reply = {"status": "failed", "line": "nothing is mapped yet"}
        elif verb == "confine":
            # strict off: torch or a driver will be loaded, which need more system calls than a plain kernel.
            layers = stage2.lock_down(strict=request["strict"])
            facts = layers | probe.canaries()
            if request["strict"]:
                facts |= stage2.seal()
            reply = {"status": "ok", "facts": facts}
        elif verb == "load":
            line = runner.load(request["path"])
            reply = {"status": "load error" if line else "ok", "line": line}
        else:
            reply = runner.once(request) if verb == "once" else runner.batch(request)
        sock.sendall(encode({"id": request["id"], **reply}))


if __name__ == "__main__":
    main()
