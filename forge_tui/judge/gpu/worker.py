"""The run worker on a device: our interpreter, standard library, the driver. Holds no host code of the candidate.

Order: open the device and the judge's memory, warm the driver, lock down, probe the canaries, and only then load the
candidate's binary. Holds no expected output, no seed, no tolerance, no key. Everything it replies is a claim.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

from forge_tui.judge.wire import read_request
from forge_tui.launch import driver, ipc
from forge_tui.launch.device import Device
from forge_tui.launch.driver import DriverError
from forge_tui.launch.graph import Graph, capture
from forge_tui.launch.program import Call, Program, load_program
from forge_tui.records.card import VariantKey
from forge_tui.records.codec import from_json
from forge_tui.records.frames import encode
from forge_tui.records.plan import Plan
from forge_tui.records.problem import MachineProblem, Problem
from forge_tui.sandbox import probe, stage2

Answer = dict[str, Any]


def refused(problem: Problem) -> Answer:
    """A problem as a reply: the judge decides what it means."""
    status = {"candidate": "fault", "machine": "no memory"}.get(problem.blame, "failed")
    return {"status": status, "line": problem.line[:400], "facts": {"kind": problem.kind}}


class Runner:
    """The judge's memory in this process and, once loaded, the candidate."""

    def __init__(self, request: Answer) -> None:
        self.device = Device.open(driver.load(), request["device"])
        self.layout = request["layout"]
        self.base = {n: ipc.attach(self.device, bytes.fromhex(h)) for n, h in request["handles"].items()}
        self.key = from_json(VariantKey, request["key"])
        self.stream = self.device.stream()
        self.start, self.end = self.device.event(), self.device.event()
        self.sets = len(self.layout["inputs"])
        self.program: Program | None = None
        self.rotation: Graph | None = None
        # The driver starts its threads and opens its files at the first work: before the doors close.
        room = self.device.allocate(1 << 20)
        self.device.fill(room, 0, 1 << 20, self.stream)
        self.device.record(self.start, self.stream)
        self.device.wait()
        self.device.free(room)

    def load(self, request: Answer) -> Answer:
        data = Path(request["path"]).read_bytes()
        found = load_program(self.device, data, from_json(Plan, request["plan"]), self.key)
        if isinstance(found, Problem):
            return refused(found)
        self.program = found
        facts = {f.name[:40]: f"{f.registers} registers, {f.local_bytes} local bytes" for f in found.functions[:8]}
        return {"status": "ok", "facts": facts}

    def bind(self, from_set: int, slot: int) -> Call | Problem:
        if self.program is None:
            return Problem("harness", "order", "no candidate is loaded")
        inputs = [self.base["in"] + offset for offset in self.layout["inputs"][from_set]]
        outputs = [self.base["out"] + offset for offset in self.layout["outputs"][slot]]
        return self.program.bind(inputs, outputs, self.base["work"] + self.layout["workspace"])

    def once(self, request: Answer) -> Answer:
        call = self.bind(request["set"], request["slot"])
        problem = call if isinstance(call, Problem) else call.launch(self.stream)
        if problem is not None:
            return refused(problem)
        self.device.wait()
        return {"status": "ok"}

    def batch(self, request: Answer) -> Answer:
        """Whole rotations; in batches of more than one, the clock starts behind an untimed rotation."""
        if self.rotation is None:
            calls: list[Call] = []
            for index in range(self.sets):
                call = self.bind(index, index)
                if isinstance(call, Problem):
                    return refused(call)
                calls.append(call)
            graph = capture(self.device, calls, self.stream)
            if isinstance(graph, Problem):
                return refused(graph)
            self.rotation = graph
        rounds = request["n"] // self.sets
        problem = self.rotation.launch(self.stream) if rounds > 1 else None
        self.device.record(self.start, self.stream)
        for _ in range(rounds):
            problem = problem or self.rotation.launch(self.stream)
        self.device.record(self.end, self.stream)
        if problem is not None:
            return refused(problem)
        self.device.wait()
        return {"status": "ok", "ns": int(self.device.elapsed_us(self.start, self.end) * 1000)}


def answer(runner: Runner, request: Answer) -> Answer:
    verb = request["do"]
    if verb == "confine":
        layers = stage2.lock_down(strict=False)
        return {"status": "ok", "facts": layers | probe.canaries()}
    handlers = {"load": runner.load, "once": runner.once, "batch": runner.batch}
    try:
        return handlers[verb](request)
    except DriverError as error:
        return refused(error.problem("the run"))


def main() -> None:
    sock = socket.socket(fileno=int(os.environ["FORGE_FD"]))
    runner: Runner | None = None
    while True:
        try:
            request = read_request(sock)
        except EOFError:
            return
        if request["do"] == "map":
            try:
                runner = Runner(request)
                reply: Answer = {"status": "ok", "facts": {"target": runner.device.target}}
            except (DriverError, MachineProblem) as error:
                reply = {"status": "failed", "line": str(error)[:400]}
        elif runner is None:
            reply = {"status": "failed", "line": "nothing is mapped yet"}
        else:
            reply = answer(runner, request)
        sock.sendall(encode({"id": request["id"], **reply}))


if __name__ == "__main__":
    main()
