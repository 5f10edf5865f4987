"""Sandbox: confined child processes, their layers, and the probes that show the layers hold.

Promises
- Standard library only, Python 3.10 and later, Linux system calls through ctypes; works as root and as a plain user.
- Every layer is detected by trying it (`profile`), applied by a small single-threaded launcher before the target is
  executed (`stage1`), tightened inside a worker before candidate code is loaded (`stage2`), and probed there (`probe`).
- A layer that can't be had is named with its reason; it is never silently dropped.
- After `ConfinedProcess.kill` nothing that the child started is alive.

Order inside a run worker: map buffers and load our own libraries, `stage2.warm_openmp`, `stage2.lock_down`,
`probe.canaries`, then load the candidate. May import `records.problem` only (in `child` and `profile`).
"""
