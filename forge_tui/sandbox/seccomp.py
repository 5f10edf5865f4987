"""seccomp: filters built by hand as classic BPF, for the launcher (deny lists) and for a locked worker (allow list).

Every filter refuses foreign architectures and x32 numbers first. clone3 answers ENOSYS, because its flags lie in
memory where a filter can't read them: libc then falls back to clone, which is filtered by its flags.
Refusals are errors (EPERM), so that probes can observe them; `seal` alone kills.
"""

from __future__ import annotations

import ctypes
import errno

from forge_tui.sandbox.syscalls import AUDIT_ARCH, MACHINE, NUMBERS, syscall

_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER_AT, _ARCH_AT, _ARGUMENTS_AT = 0, 4, 16  # offsets in struct seccomp_data
_X32_BIT = 0x40000000
_SET_FILTER, _TSYNC = 1, 1
CLONE_THREAD, CLONE_NEW_ANY = 0x10000, 0x7E020080  # NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET, NEWTIME

REFUSED = _ERRNO | errno.EPERM
ABSENT = _ERRNO | errno.ENOSYS


def _words(text: str) -> list[str]:
    return text.split()


# Never needed by a compiler or a kernel: other processes' memory, kernel surface, namespaces, clocks, keys.
ALWAYS_REFUSED = _words("""
ptrace process_vm_readv process_vm_writev process_madvise process_mrelease kcmp pidfd_getfd bpf userfaultfd
io_uring_setup io_uring_enter io_uring_register io_setup mount umount2 pivot_root chroot unshare setns open_tree
move_mount fsopen fsconfig fsmount fspick mount_setattr keyctl add_key request_key perf_event_open open_by_handle_at
name_to_handle_at init_module finit_module delete_module kexec_load kexec_file_load reboot swapon swapoff sethostname
setdomainname clock_settime clock_adjtime adjtimex settimeofday acct quotactl syslog iopl ioperm modify_ldt personality
move_pages migrate_pages memfd_secret vmsplice
""")

# Landlock leaves metadata open; a worker has no business with it, nor with other processes.
WORKER_REFUSED = _words("""
chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat utime utimes futimesat utimensat setxattr lsetxattr
fsetxattr removexattr lremovexattr fremovexattr kill tkill rt_sigqueueinfo rt_tgsigqueueinfo pidfd_send_signal pidfd_open
setpriority sched_setparam sched_setscheduler sched_setattr ioprio_set shmget shmat shmctl msgget semget mq_open
""")

# What a CPU kernel, libgomp, libm, malloc, the loader and a worker's read/run/reply loop use once everything is warm.
LOCKED_ALLOWED = _words("""
read write readv writev pread64 pwrite64 preadv open openat close stat fstat lstat newfstatat statx statfs fstatfs
readlink readlinkat access faccessat faccessat2 getcwd getdents64 lseek fcntl dup dup2 dup3 pipe pipe2 eventfd2
epoll_create1 epoll_ctl epoll_wait epoll_pwait poll ppoll select pselect6 ftruncate fsync mmap munmap mprotect mremap
msync mincore madvise brk futex futex_waitv sched_yield sched_getaffinity sched_getscheduler sched_getattr getpriority
getcpu membarrier set_robust_list get_robust_list set_tid_address rseq arch_prctl rt_sigaction rt_sigprocmask
rt_sigreturn rt_sigpending rt_sigtimedwait sigaltstack restart_syscall tgkill wait4 waitid getpid getppid gettid getuid
geteuid getgid getegid uname sysinfo times getrusage getrlimit prlimit64 time gettimeofday clock_gettime clock_getres
clock_nanosleep nanosleep getrandom recvfrom recvmsg sendto sendmsg shutdown getsockname getpeername getsockopt
setsockopt exit exit_group close_range seccomp
""")
_IOCTLS = (0x5451, 0x5450, 0x5421, 0x5401, 0x541B)  # FIOCLEX, FIONCLEX, FIONBIO, TCGETS, FIONREAD
_PRCTLS = (15, 16, 0x53564D41)  # PR_SET_NAME, PR_GET_NAME, PR_SET_VMA (glibc names its heaps)

# A locked worker that tries one of these is not computing.
HOSTILE = _words("execve execveat fork vfork socket connect bind listen ptrace process_vm_readv process_vm_writev")


class _Instruction(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint16), ("jt", ctypes.c_uint8), ("jf", ctypes.c_uint8), ("k", ctypes.c_uint32))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.POINTER(_Instruction)))


Code = list[tuple[int, int, int, int]]


class Filter:
    """A filter under construction: blocks in order, the first that matches decides, else `default`."""

    def __init__(self) -> None:
        self._code: Code = [
            (_LOAD, 0, 0, _ARCH_AT),
            (_EQUAL, 1, 0, AUDIT_ARCH[MACHINE]),
            (_RETURN, 0, 0, _KILL),
            (_LOAD, 0, 0, _NUMBER_AT),
        ]
        if MACHINE == "x86_64":
            self._code += [(_AT_LEAST, 0, 1, _X32_BIT), (_RETURN, 0, 0, ABSENT)]

    def always(self, names: list[str], action: int) -> Filter:
        """`action` for each system call that exists on this machine."""
        for name in names:
            self._block(name, [(_RETURN, 0, 0, action)])
        return self

    def argument_in(self, name: str, index: int, values: tuple[int, ...], inside: int, outside: int) -> Filter:
        """`inside` when the low 32 bits of argument `index` are one of `values`, else `outside`."""
        code: Code = [(_LOAD, 0, 0, _ARGUMENTS_AT + 8 * index)]
        for value in values:
            code += [(_EQUAL, 0, 1, value & 0xFFFFFFFF), (_RETURN, 0, 0, inside)]
        self._block(name, [*code, (_RETURN, 0, 0, outside)])
        return self

    def clone_flags(self, need: int, refuse: int, allowed: int = _ALLOW, refused: int = REFUSED) -> Filter:
        """clone: `refused` when a bit of `refuse` is set or (need != 0) no bit of `need` is."""
        code: Code = [(_LOAD, 0, 0, _ARGUMENTS_AT), (_ANY_BIT, 0, 1, refuse), (_RETURN, 0, 0, refused)]
        if need:
            code += [(_ANY_BIT, 1, 0, need), (_RETURN, 0, 0, refused)]
        self._block("clone", [*code, (_RETURN, 0, 0, allowed)])
        return self

    def install(self, default: int, sync: bool) -> None:
        """Put the filter in force for this thread, or with `sync` for all threads. Raises OSError."""
        code = [*self._code, (_RETURN, 0, 0, default)]
        instructions = (_Instruction * len(code))(*[_Instruction(*line) for line in code])
        program = _Program(len(code), instructions)
        result = syscall("seccomp", _SET_FILTER, _TSYNC if sync else 0, ctypes.byref(program))
        if result != 0:
            raise OSError(errno.EBUSY, f"thread {result} could not take the filter")

    def _block(self, name: str, code: Code) -> None:
        if name in NUMBERS[MACHINE]:
            self._code += [(_EQUAL, 0, len(code), NUMBERS[MACHINE][name]), *code]


def supported() -> str:
    """Empty when filters can be built for this machine, else why not."""
    return "" if MACHINE in AUDIT_ARCH else f"no system call table for {MACHINE}"


def launcher_filter(role: str, pid: int) -> None:
    """The filter of stage 1, in force from before the target is executed. pid: the target's own process id."""
    rules = Filter().always(ALWAYS_REFUSED, REFUSED).always(["clone3"], ABSENT)
    if role == "compile":
        rules.always(["socket", "socketpair"], REFUSED).clone_flags(0, CLONE_NEW_ANY)
        rules.install(_ALLOW, sync=False)
        return
    rules.always(WORKER_REFUSED, REFUSED)
    rules.argument_in("socket", 0, (1,), _ALLOW, REFUSED)  # AF_UNIX: CUDA's start-up needs it; stage 2 ends it
    rules.argument_in("tgkill", 0, (pid,), _ALLOW, REFUSED)  # abort() signals its own process
    rules.argument_in("prlimit64", 0, (0, pid), _ALLOW, REFUSED)
    if role == "run":
        rules.always(["fork", "vfork"], REFUSED).clone_flags(CLONE_THREAD, CLONE_NEW_ANY)
    else:
        rules.clone_flags(0, CLONE_NEW_ANY)
    rules.install(_ALLOW, sync=False)


def worker_filter(strict: bool, open_files: bool) -> None:
    """The filter of stage 2, for all threads: no programs, processes, threads, sockets; `strict` allows a list only."""
    ended = ["execve", "execveat", "fork", "vfork", "clone", "socket", "socketpair", "connect", "bind", "listen"]
    rules = Filter().always(["clone3"], ABSENT).always(ended, REFUSED)
    if not open_files:
        rules.always(["open", "openat", "openat2"], REFUSED)
    if not strict:
        rules.always(ALWAYS_REFUSED, REFUSED).install(_ALLOW, sync=True)
        return
    rules.always(LOCKED_ALLOWED, _ALLOW)
    rules.argument_in("ioctl", 1, _IOCTLS, _ALLOW, REFUSED)
    rules.argument_in("prctl", 0, _PRCTLS, _ALLOW, REFUSED)
    rules.install(REFUSED, sync=True)


def sealing_filter() -> None:
    """From now on a hostile call kills the process (SIGSYS), for all threads."""
    rules = Filter().always(HOSTILE, _KILL).clone_flags(CLONE_THREAD, CLONE_NEW_ANY, refused=_KILL)
    rules.install(_ALLOW, sync=True)
