"""Confined children: their descriptors, output, endings and the second stage inside them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import mmap
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from forge_tui.records.frames import read_fd, write_fd
from forge_tui.records.problem import HarnessProblem
from forge_tui.sandbox import child
from forge_tui.sandbox.boot import isolated_command
from forge_tui.sandbox.confinement import Confinement, compile_confinement, interpreter_paths, run_confinement
from forge_tui.sandbox.profile import detect

if not sys.platform.startswith("linux"):
    pytest.skip("the layers are Linux's", allow_module_level=True)


def python(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", code, *arguments]


def test_a_child_gets_its_own_environment_and_no_other_descriptor() -> None:
    stray = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(stray, True)
    code = "import os,json; print(json.dumps([dict(os.environ), sorted(map(int,os.listdir('/proc/self/fd')))]))"
    done = child.run(python(code), run_confinement((), environment={"MINE": "1"}), 10)
    os.close(stray)
    variables, descriptors = json.loads(done.stdout)
    assert variables["MINE"] == "1"
    assert set(variables) <= {"PATH", "LANG", "HOME", "TMPDIR", "OMP_NUM_THREADS", "OMP_DYNAMIC", "MINE", "FORGE_PARENT", "LC_CTYPE"}  # fmt: skip
    assert descriptors[:3] == [0, 1, 2] and len(descriptors) == 4  # the last one lists the folder


def test_a_memfd_is_shared_with_a_worker_through_an_inherited_descriptor() -> None:
    memory = os.memfd_create("buffer")
    os.ftruncate(memory, 4096)
    code = "import mmap,sys; m=mmap.mmap(int(sys.argv[1]),4096); m[:5]=b'hello'"
    done = child.run(python(code, str(memory)), run_confinement((), pass_fds=(memory,)), 10)
    assert done.ended.code == 0
    with mmap.mmap(memory, 4096) as view:
        assert view[:5] == b"hello"
    os.close(memory)


def test_frames_pass_over_the_channel_and_its_end_is_seen() -> None:
    code = (
        "import os,struct\nfd=int(os.environ['FORGE_FD'])\nn=struct.unpack('<I',os.read(fd,4))[0]\nb=os.read(fd,n)\n"
        "os.write(fd,struct.pack('<I',len(b))+b)"
    )
    process = child.spawn(python(code), run_confinement(()), channel=True)
    assert process.channel is not None
    write_fd(process.channel.fileno(), {"id": 7})
    assert read_fd(process.channel.fileno()) == {"id": 7}
    with pytest.raises(EOFError):
        read_fd(process.channel.fileno())
    ended = process.wait(10)
    process.channel.close()
    assert ended is not None and ended.code == 0


def test_a_flood_is_drained_capped_and_stripped_of_escapes() -> None:
    code = "import sys\nsys.stdout.write('\\x1b[31mred\\x07'+'x'*(4<<20))\nsys.stderr.write('\\x9b31m\\u202eevil\\n')"
    done = child.run(python(code), run_confinement(()), 10)
    assert done.ended.code == 0
    assert len(done.stdout) == child.OUTPUT_KEPT
    assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(done.stdout + done.stderr)


def test_endings_tell_codes_signals_and_use_apart() -> None:
    assert child.run(python("raise SystemExit(3)"), run_confinement(()), 10).ended.code == 3
    crashed = child.run(python("import ctypes; ctypes.string_at(0)"), run_confinement(()), 10).ended
    assert (crashed.code, crashed.signal) == (None, "SIGSEGV")
    aborted = child.run(python("import os; os.abort()"), run_confinement(()), 10).ended
    assert aborted.signal == "SIGABRT"
    assert crashed.peak_bytes is not None and crashed.peak_bytes > 1 << 20 and crashed.cpu_s is not None


def test_a_child_past_its_wall_limit_is_killed_and_says_so() -> None:
    done = child.run(python("import time; time.sleep(60)"), run_confinement(()), 0.3)
    assert done.timed_out and done.ended.signal == "SIGKILL" and done.ended.wall_s < 10


def test_the_targets_own_process_id_is_known_while_it_runs() -> None:
    process = child.spawn(python("import time; time.sleep(60)"), run_confinement(()))
    pid = process.target_pid
    assert pid is not None
    assert b"time.sleep" in Path(f"/proc/{pid}/cmdline").read_bytes()
    process.kill()
    assert process.target_pid is None and not process.alive


def test_a_target_that_cannot_be_executed_is_a_harness_problem_with_its_reason() -> None:
    with pytest.raises(HarnessProblem, match="No such file"):
        child.spawn(["/nonexistent/program"], run_confinement(()))
    with pytest.raises(HarnessProblem, match="Permission denied"):
        child.spawn(["/usr/bin/true"], Confinement("run", ("/lib", "/lib64")))


def test_descriptors_do_not_leak_over_many_children() -> None:
    child.run(python("pass"), run_confinement(()), 10)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        child.run(python("pass"), run_confinement(()), 10)
    with contextlib.suppress(HarnessProblem):
        child.spawn(["/nonexistent"], run_confinement(()))
    assert len(list(Path("/proc/self/fd").iterdir())) == before


async def test_a_cancelled_task_takes_its_child_along(tmp_path: Path) -> None:
    code = "import sys,time\nwhile True:\n open(sys.argv[1],'a').write('.'); time.sleep(0.01)"
    confinement = compile_confinement(tmp_path, read=interpreter_paths())
    task = asyncio.create_task(child.run_async(python(code, str(tmp_path / "beat")), confinement, 60))
    for _ in range(1000):
        if (tmp_path / "beat").exists():
            break
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    size = (tmp_path / "beat").stat().st_size
    await asyncio.sleep(0.1)
    assert (tmp_path / "beat").stat().st_size == size


SUM = """
#include <math.h>
extern "C" double forge_sum(const double* x, long n) {
  double s = 0;
  #pragma omp parallel for num_threads(2) reduction(+:s)
  for (long i = 0; i < n; i++) s += sqrt(x[i]);
  return s;
}
"""
WORKER = """
import ctypes, json, sys
from forge_tui.sandbox import probe, stage2
def main():
    threads = stage2.warm_openmp(2)
    layers = stage2.lock_down()
    found = probe.canaries()
    layers |= stage2.seal() if "seal" in sys.argv else {}
    library = ctypes.CDLL(sys.argv[1])
    library.forge_sum.restype = ctypes.c_double
    n = 100000
    x = (ctypes.c_double * n)(*[4.0] * n)
    total = library.forge_sum(x, ctypes.c_long(n))
    print(json.dumps([threads, layers, probe.allowed(found), total, stage2.thread_count()]), flush=True)
    if "socket" in sys.argv:
        import socket
        socket.socket()
main()
"""


@pytest.fixture(scope="module")
def summing_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++ here")
    folder = tmp_path_factory.mktemp("library")
    (folder / "sum.cpp").write_text(SUM)
    subprocess.run([compiler, "-O2", "-fopenmp", "-shared", "-fPIC", "sum.cpp", "-o", "sum.so"], cwd=folder, check=True)
    return folder / "sum.so"


def worker_command(library: Path, *words: str) -> list[str]:
    argv = isolated_command("forge_tui.sandbox.probe")
    boot = argv.index("-c") + 1
    argv[boot] = argv[boot].replace("__import__(m);sys.modules[m].main()\n", WORKER)
    return [*argv[:-1], "worker", str(library), *words]


def test_an_openmp_library_runs_after_lock_down(summing_library: Path) -> None:
    if not detect().has("seccomp"):
        pytest.skip(detect().line)
    confinement = run_confinement((str(summing_library),), threads=2)
    done = child.run(worker_command(summing_library, "seal"), confinement, 20)
    threads, layers, allowed, total, after = json.loads(done.stdout)
    assert done.ended.code == 0, done.stderr
    assert (threads, after, total) == (2, 2, 200000.0)
    assert layers == {"lock_down": "on", "seal": "on"} and allowed == []


def test_a_sealed_worker_that_reaches_for_a_socket_dies_by_sigsys(summing_library: Path) -> None:
    if not detect().has("seccomp"):
        pytest.skip(detect().line)
    confinement = run_confinement((str(summing_library),), threads=2)
    done = child.run(worker_command(summing_library, "seal", "socket"), confinement, 20)
    assert done.ended.signal == "SIGSYS"


def test_the_binary_next_door_is_not_readable(summing_library: Path) -> None:
    confinement = run_confinement((str(summing_library),))
    code = "import sys; open(sys.argv[1],'rb').read(); open(sys.argv[2],'rb')"
    done = child.run(python(code, str(summing_library), str(summing_library.with_name("sum.cpp"))), confinement, 10)
    assert done.ended.code == 1 and "PermissionError" in done.stderr and "sum.cpp" in done.stderr
