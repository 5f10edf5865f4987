"""The second stage, called inside a worker: warm what needs threads and files, then close the doors, then load the candidate.

Order of calls, from the worker's main thread:
    1. map the buffers, load our own libraries (ctypes.CDLL of the plumbing library, libm, libgomp)
    2. warm_openmp(threads)   the largest team that will ever be asked for
    3. lock_down()            no program, process, thread or socket from here on, in any thread
    4. probe.canaries()       each must read "refused"
    5. seal()                 optional: from now on a hostile call kills the worker (SIGSYS) instead of failing
    6. ctypes.CDLL(candidate)

libgomp lets threads of a team go when a later team is smaller (but not for a team of one), and a bigger team after that
would need new threads: it then ends the process with "libgomp: Thread creation failed". A candidate must therefore use
one team size, or one and 1.
"""

from __future__ import annotations

import ctypes
import os

from forge_tui.sandbox import privileges, seccomp

OPENMP = "libgomp.so.1"


def warm_openmp(threads: int, library: str = OPENMP) -> int:
    """Start libgomp's pool with `threads` threads (the caller included) and return how many the process has then.

    The library is loaded globally, so a candidate linked against it uses the same pool. Raises OSError when it is missing.
    """
    gomp = ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
    gomp.omp_set_num_threads(ctypes.c_int(threads))
    # free(NULL) is the body of the region: native, so no thread of the pool ever needs the interpreter.
    nothing = ctypes.cast(ctypes.CDLL(None).free, ctypes.c_void_p)
    gomp.GOMP_parallel(nothing, ctypes.c_void_p(None), ctypes.c_uint(threads), ctypes.c_uint(0))
    return thread_count()


def thread_count() -> int:
    """Threads of this process."""
    return len(os.listdir("/proc/self/task"))


def lock_down(*, strict: bool = True, open_files: bool = True) -> dict[str, str]:
    """Refuse execve, processes, threads, sockets and other processes' memory, for all threads and for good.

    strict: allow only the calls a CPU kernel and a worker's loop use; switch it off where a driver or torch runs inside.
    open_files False: no file is opened any more either, so the candidate must be loaded already.
    Returns layer -> "on" or the reason; a kernel without seccomp gives the reason, never an exception.
    """
    reason = seccomp.supported()
    if reason:
        return {"lock_down": reason}
    try:
        privileges.no_new_privileges()
        seccomp.worker_filter(strict, open_files)
    except OSError as error:
        return {"lock_down": str(error)}
    return {"lock_down": "on"}


def seal() -> dict[str, str]:
    """From now on a hostile call ends the process with SIGSYS: the judge sees what was tried. Returns as `lock_down`."""
    reason = seccomp.supported()
    if reason:
        return {"seal": reason}
    try:
        seccomp.sealing_filter()
    except OSError as error:
        return {"seal": str(error)}
    return {"seal": "on"}
