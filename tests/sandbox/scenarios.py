"""What the sandbox tests do, as a program that runs as root or as a plain user: `scenarios.py FOLDER PROFILE NAME...`.

FOLDER: private folder of this run. PROFILE: "detected", or "no-userns" (the detected layers without namespaces and
without another user id). Prints one JSON object: name -> what was seen. Needs the standard library and forge_tui only.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from forge_tui.sandbox import child
from forge_tui.sandbox.boot import isolated_command
from forge_tui.sandbox.confinement import MEBIBYTE, Confinement, Limits, compile_confinement, run_confinement
from forge_tui.sandbox.processes import descendants
from forge_tui.sandbox.profile import Profile, detect, profile_of

HEARTBEAT = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            with open(sys.argv[1], "a") as beat: beat.write(".")
            time.sleep(0.005)
    os._exit(0)
time.sleep(60)
"""


def profile_for(name: str) -> Profile:
    layers = dict(detect().layers)
    if name == "no-userns":
        layers.update({k: "left out by the test" for k in layers if k.endswith("_ns") or k == "other_uid"})
    return profile_of(layers)


def python(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", code, *arguments]


class Scenarios:
    def __init__(self, folder: Path, profile: Profile) -> None:
        self.folder = folder
        self.profile = profile

    def finish(self, argv: list[str], confinement: Confinement, limit_s: float = 20) -> child.Finished:
        return child.run(argv, confinement, limit_s, profile=self.profile)

    def tools(self) -> Confinement:
        """A role that may fork and write, with this interpreter readable."""
        return compile_confinement(self.folder, read=run_confinement(()).read)

    def layers(self) -> dict[str, str]:
        return self.finish(python("pass"), run_confinement(())).layers

    def canaries(self) -> dict[str, str]:
        done = self.finish(isolated_command("forge_tui.sandbox.probe"), run_confinement(()))
        return dict(json.loads(done.stdout)["canaries"])

    def unlocked_canaries(self) -> dict[str, str]:
        done = self.finish(isolated_command("forge_tui.sandbox.probe", "unlocked"), run_confinement(()))
        return dict(json.loads(done.stdout)["canaries"])

    def canaries_without_landlock(self) -> dict[str, str]:
        layers = self.profile.layers | {"landlock": "left out by the test"}
        argv = isolated_command("forge_tui.sandbox.probe")
        done = child.run(argv, run_confinement(()), 20, profile=profile_of(layers))
        return dict(json.loads(done.stdout)["canaries"])

    def fork_bomb(self) -> int:
        """Forks that a run worker managed before any lock_down."""
        code = (
            "import os,time\nn=0\nfor _ in range(300):\n try:\n  p=os.fork()\n except OSError: continue\n"
            " if p==0: time.sleep(5); os._exit(0)\n n+=1\nprint(n)"
        )
        return int(self.finish(python(code), run_confinement(())).stdout)

    def process_limit(self) -> int:
        """Processes that a compile worker with a limit of 20 could hold at once."""
        code = (
            "import os,time\nn=0\nfor _ in range(60):\n try:\n  p=os.fork()\n except OSError: break\n"
            " if p==0: time.sleep(20); os._exit(0)\n n+=1\nprint(n)"
        )
        base = self.tools()
        limited = Confinement("compile", base.read, base.write, (), Limits(processes=20), base.environment)
        return int(self.finish(python(code), limited).stdout)

    def secret_seen(self) -> bool:
        """A key in our environment, looked for in every /proc/*/environ and in the child's own variables."""
        os.environ["FORGE_TEST_KEY"] = "sk-canary-93417"
        again = [sys.executable, "-c", "import time; time.sleep(20)"]
        sibling = subprocess.Popen(again)
        code = (
            "import glob,os\nseen='canary-93417' in str(dict(os.environ))\n"
            f"for p in glob.glob('/proc/[0-9]*/environ')+['/proc/{os.getpid()}/environ','/proc/{sibling.pid}/environ']:\n"
            " try: seen|=b'canary-93417' in open(p,'rb').read()\n except OSError: pass\nprint(seen)"
        )
        try:
            return self.finish(python(code), run_confinement(())).stdout.strip() != "False"
        finally:
            sibling.kill()
            sibling.wait()

    def tree_kill(self) -> dict[str, bool]:
        beat = self.folder / "beat"
        process = child.spawn(python(HEARTBEAT, str(beat)), self.tools(), profile=self.profile)
        self.await_file(beat)
        alive = process.alive
        ended = process.kill()
        size = beat.stat().st_size
        time.sleep(0.1)
        return {
            "was_alive": alive,
            "signal": ended.signal == "SIGKILL",
            "silent": beat.stat().st_size == size,
            "no_descendants": not descendants(process.pid),
            "again": process.kill() == ended,
        }

    def daemon_of_an_ended_worker(self) -> dict[str, bool]:
        """The target ends by itself; what it left behind must go, too."""
        beat = self.folder / "daemon"
        code = HEARTBEAT.replace("time.sleep(60)", "time.sleep(0.3)")
        ended = self.finish(python(code, str(beat)), self.tools()).ended
        size = beat.stat().st_size
        time.sleep(0.1)
        return {"code": ended.code == 0, "beat": size > 0, "silent": beat.stat().st_size == size}

    def caller_dies(self) -> dict[str, bool]:
        """The process that called spawn is killed with SIGKILL."""
        beat = self.folder / "orphan"
        name = "no-userns" if not self.profile.namespaces else "detected"
        caller = subprocess.Popen([sys.executable, __file__, str(self.folder), name, "linger"])
        self.await_file(beat)
        caller.send_signal(signal.SIGKILL)
        caller.wait()
        deadline = time.monotonic() + 5
        size = -1
        while size != beat.stat().st_size and time.monotonic() < deadline:
            size = beat.stat().st_size
            time.sleep(0.1)
        return {"silent": size == beat.stat().st_size}

    def linger(self) -> None:
        child.spawn(python(HEARTBEAT, str(self.folder / "orphan")), self.tools(), profile=self.profile)
        time.sleep(60)

    def await_file(self, path: Path) -> None:
        deadline = time.monotonic() + 10
        while not (path.exists() and path.stat().st_size) and time.monotonic() < deadline:
            time.sleep(0.01)

    def files(self) -> dict[str, object]:
        """Writes inside and outside the scratch folder, a file over the limit, a forbidden read."""
        outside = Path("/tmp") / f"forge-test-{os.getpid()}"
        secret = self.folder.parent / f"secret-{os.getpid()}"
        secret.write_text("private")
        code = (
            "import json,sys\nout={}\n"
            "def attempt(name, path, mode, size=1):\n"
            " try:\n  f=open(path,mode)\n  f.write(b'x'*size) if 'w' in mode else f.read()\n  f.close(); out[name]='allowed'\n"
            " except OSError as e: out[name]=type(e).__name__+' '+str(e.errno)\n"
            "attempt('inside',sys.argv[1]+'/a','wb')\nattempt('outside',sys.argv[2],'wb')\n"
            "attempt('large',sys.argv[1]+'/b','wb',3<<20)\nattempt('secret',sys.argv[3],'rb')\nprint(json.dumps(out))"
        )
        base = self.tools()
        limited = Confinement("compile", base.read, base.write, (), Limits(file_bytes=MEBIBYTE), base.environment)
        done = self.finish(python(code, str(self.folder), str(outside), str(secret)), limited)
        secret.unlink()
        return dict(json.loads(done.stdout)) | {"left": outside.exists()}

    def memory(self) -> str:
        code = "try: b=bytearray(1<<30)\nexcept MemoryError: print('refused')\nelse: print('allowed')"
        return self.finish(python(code), run_confinement((), limits=Limits(memory_bytes=256 * MEBIBYTE))).stdout.strip()

    def processor_time(self) -> str:
        done = self.finish(python("while True: pass"), run_confinement((), limits=Limits(cpu_s=1)))
        return "timed out" if done.timed_out else done.ended.signal

    def metadata(self) -> dict[str, str]:
        """chmod, utime and a foreign process's limits: what Landlock leaves open."""
        target = self.folder / "mine"
        target.write_text("x")
        code = (
            "import json,os,resource,sys\nout={}\n"
            "def attempt(name, call):\n try: call(); out[name]='allowed'\n except OSError as e: out[name]='refused'\n"
            "attempt('chmod',lambda: os.chmod(sys.argv[1],0o777))\nattempt('utime',lambda: os.utime(sys.argv[1]))\n"
            "attempt('priority',lambda: os.setpriority(os.PRIO_PROCESS,0,5))\n"
            "attempt('kill',lambda: os.kill(os.getpid(),0))\n"
            f"attempt('limits',lambda: resource.prlimit({os.getpid()},resource.RLIMIT_CPU))\nprint(json.dumps(out))"
        )
        return dict(json.loads(self.finish(python(code, str(target)), run_confinement(())).stdout))


def main() -> None:
    folder, profile = Path(sys.argv[1]), profile_for(sys.argv[2])
    scenarios = Scenarios(folder, profile)
    print(json.dumps({name: getattr(scenarios, name)() for name in sys.argv[3:]}))


if __name__ == "__main__":
    main()
