"""Raw Linux system calls through ctypes: numbers per machine, and a call that raises OSError.

The launcher must start in milliseconds, so this module and the layer modules import nothing heavy.
Numbers: arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h of Linux 6.18.
"""

from __future__ import annotations

import ctypes
import os

LIBC = ctypes.CDLL(None, use_errno=True)

# Machine -> AUDIT_ARCH value that a seccomp filter compares with (include/uapi/linux/audit.h).
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

_X86_64 = """
read 0 write 1 open 2 close 3 stat 4 fstat 5 lstat 6 poll 7 lseek 8 mmap 9 mprotect 10 munmap 11 brk 12 rt_sigaction 13
rt_sigprocmask 14 rt_sigreturn 15 ioctl 16 pread64 17 pwrite64 18 readv 19 writev 20 access 21 pipe 22 select 23
sched_yield 24 mremap 25 msync 26 mincore 27 madvise 28 shmget 29 shmat 30 shmctl 31 dup 32 dup2 33 nanosleep 35
getpid 39 socket 41 connect 42 accept 43 sendto 44 recvfrom 45 sendmsg 46 recvmsg 47 shutdown 48 bind 49 listen 50
getsockname 51 getpeername 52 socketpair 53 setsockopt 54 getsockopt 55 clone 56 fork 57 vfork 58 execve 59 exit 60
wait4 61 kill 62 uname 63 semget 64 msgget 68 fcntl 72 fsync 74 ftruncate 77 getcwd 79 readlink 89 chmod 90 fchmod 91
chown 92 fchown 93 lchown 94 gettimeofday 96 getrlimit 97 getrusage 98 sysinfo 99 times 100 ptrace 101 getuid 102
syslog 103 getgid 104 geteuid 107 getegid 108 getppid 110 rt_sigpending 127 rt_sigtimedwait 128 rt_sigqueueinfo 129
sigaltstack 131 utime 132 personality 135 statfs 137 fstatfs 138 getpriority 140 setpriority 141 sched_setparam 142
sched_setscheduler 144 sched_getscheduler 145 modify_ldt 154 pivot_root 155 prctl 157 arch_prctl 158 adjtimex 159
setrlimit 160 chroot 161 acct 163 settimeofday 164 mount 165 umount2 166 swapon 167 swapoff 168 reboot 169
sethostname 170 setdomainname 171 iopl 172 ioperm 173 init_module 175 delete_module 176 quotactl 179 gettid 186
setxattr 188 lsetxattr 189 fsetxattr 190 removexattr 197 lremovexattr 198 fremovexattr 199 tkill 200 time 201 futex 202
sched_setaffinity 203 sched_getaffinity 204 io_setup 206 getdents64 217 set_tid_address 218 restart_syscall 219
clock_settime 227 clock_gettime 228 clock_getres 229 clock_nanosleep 230 exit_group 231 epoll_wait 232 epoll_ctl 233
tgkill 234 utimes 235 mbind 237 set_mempolicy 238 get_mempolicy 239 mq_open 240 kexec_load 246 waitid 247 add_key 248
request_key 249 keyctl 250 ioprio_set 251 migrate_pages 256 openat 257 fchownat 260 futimesat 261 newfstatat 262
readlinkat 267 fchmodat 268 faccessat 269 pselect6 270 ppoll 271 unshare 272 set_robust_list 273 get_robust_list 274
vmsplice 278 move_pages 279 utimensat 280 epoll_pwait 281 eventfd2 290 epoll_create1 291 dup3 292 pipe2 293 preadv 295
rt_tgsigqueueinfo 297 perf_event_open 298 prlimit64 302 name_to_handle_at 303 open_by_handle_at 304 clock_adjtime 305
setns 308 getcpu 309 process_vm_readv 310 process_vm_writev 311 kcmp 312 finit_module 313 sched_setattr 314
sched_getattr 315 seccomp 317 getrandom 318 memfd_create 319 kexec_file_load 320 bpf 321 execveat 322 userfaultfd 323
membarrier 324 statx 332 rseq 334
"""

_AARCH64 = """
io_setup 0 setxattr 5 lsetxattr 6 fsetxattr 7 removexattr 14 lremovexattr 15 fremovexattr 16 getcwd 17 eventfd2 19
epoll_create1 20 epoll_ctl 21 epoll_pwait 22 dup 23 dup3 24 fcntl 25 ioctl 29 ioprio_set 30 umount2 39 mount 40
pivot_root 41 statfs 43 fstatfs 44 ftruncate 46 faccessat 48 chroot 51 fchmod 52 fchmodat 53 fchownat 54 fchown 55
openat 56 close 57 pipe2 59 quotactl 60 getdents64 61 lseek 62 read 63 write 64 readv 65 writev 66 pread64 67
pwrite64 68 preadv 69 pselect6 72 ppoll 73 vmsplice 75 readlinkat 78 newfstatat 79 fstat 80 fsync 82 utimensat 88
acct 89 personality 92 exit 93 exit_group 94 waitid 95 set_tid_address 96 unshare 97 futex 98 set_robust_list 99
get_robust_list 100 nanosleep 101 kexec_load 104 init_module 105 delete_module 106 clock_settime 112
clock_gettime 113 clock_getres 114 clock_nanosleep 115 syslog 116 ptrace 117 sched_setparam 118
sched_setscheduler 119 sched_getscheduler 120 sched_setaffinity 122 sched_getaffinity 123 sched_yield 124
restart_syscall 128 kill 129 tkill 130 tgkill 131 sigaltstack 132 rt_sigaction 134 rt_sigprocmask 135 rt_sigpending 136
rt_sigtimedwait 137 rt_sigqueueinfo 138 rt_sigreturn 139 setpriority 140 getpriority 141 reboot 142 times 153 uname 160
sethostname 161 setdomainname 162 getrusage 165 prctl 167 getcpu 168 gettimeofday 169 settimeofday 170 adjtimex 171
getpid 172 getppid 173 getuid 174 geteuid 175 getgid 176 getegid 177 gettid 178 sysinfo 179 mq_open 180 msgget 186
semget 190 shmget 194 shmctl 195 shmat 196 socket 198 socketpair 199 bind 200 listen 201 accept 202 connect 203
getsockname 204 getpeername 205 sendto 206 recvfrom 207 setsockopt 208 getsockopt 209 shutdown 210 sendmsg 211
recvmsg 212 brk 214 munmap 215 mremap 216 add_key 217 request_key 218 keyctl 219 clone 220 execve 221 mmap 222
swapon 224 swapoff 225 mprotect 226 msync 227 mincore 232 madvise 233 mbind 235 get_mempolicy 236 set_mempolicy 237
migrate_pages 238 move_pages 239 rt_tgsigqueueinfo 240 perf_event_open 241 wait4 260 prlimit64 261
name_to_handle_at 264 open_by_handle_at 265 clock_adjtime 266 setns 268 process_vm_readv 270 process_vm_writev 271
kcmp 272 finit_module 273 sched_setattr 274 sched_getattr 275 seccomp 277 getrandom 278 memfd_create 279 bpf 280
execveat 281 userfaultfd 282 membarrier 283 statx 291 rseq 293 kexec_file_load 294
"""

# The same on every machine since they were added.
_SHARED = """
pidfd_send_signal 424 io_uring_setup 425 io_uring_enter 426 io_uring_register 427 open_tree 428 move_mount 429
fsopen 430 fsconfig 431 fsmount 432 fspick 433 pidfd_open 434 clone3 435 close_range 436 openat2 437 pidfd_getfd 438
faccessat2 439 process_madvise 440 mount_setattr 442 landlock_create_ruleset 444 landlock_add_rule 445
landlock_restrict_self 446 memfd_secret 447 process_mrelease 448 futex_waitv 449 fchmodat2 452
"""


def _table(*texts: str) -> dict[str, int]:
    words = " ".join(texts).split()
    return dict(zip(words[::2], map(int, words[1::2]), strict=True))


NUMBERS = {"x86_64": _table(_X86_64, _SHARED), "aarch64": _table(_AARCH64, _SHARED)}
MACHINE = os.uname().machine


def number(name: str) -> int:
    """System call number on this machine. Raises OSError where it is not known."""
    try:
        return NUMBERS[MACHINE][name]
    except KeyError:
        raise OSError(f"system call {name} is not known on {MACHINE}") from None


def syscall(name: str, *arguments: object) -> int:
    """Make one system call. Integers are passed as 64 bits, ctypes objects as they are. Raises OSError."""
    ctypes.set_errno(0)
    passed = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = int(LIBC.syscall(ctypes.c_long(number(name)), *passed))
    if result == -1:
        raise last_error(name)
    return result


def prctl(option: int, *arguments: int) -> int:
    """prctl(2). Raises OSError."""
    ctypes.set_errno(0)
    padded = [ctypes.c_ulong(a) for a in (*arguments, 0, 0, 0, 0)[:4]]
    result = int(LIBC.prctl(ctypes.c_int(option), *padded))
    if result == -1:
        raise last_error(f"prctl {option}")
    return result


def last_error(what: str) -> OSError:
    """The pending errno as an OSError that names the call."""
    code = ctypes.get_errno()
    return OSError(code, f"{what}: {os.strerror(code)}")
