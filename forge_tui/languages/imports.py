"""The import audit of a built host library (check SYMS): what it asks the loader for, against a list.

Raw system calls and address arithmetic evade any such list; the sandbox stays behind it. The list holds what GCC emits
for arithmetic, loops, memory and OpenMP. Clocks are left out on purpose: a kernel that looks at the time adapts to being
measured.
"""

from __future__ import annotations

import re
from typing import Any

from forge_tui.languages import elf
from forge_tui.languages.elf import Elf, ElfError
from forge_tui.records.problem import Problem

_MATH = [
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "cbrt",
    "ceil",
    "copysign",
    "cos",
    "cosh",
    "erf",
    "erfc",
    "exp",
    "exp2",
    "exp10",
    "expm1",
    "fabs",
    "fdim",
    "floor",
    "fma",
    "fmax",
    "fmin",
    "fmod",
    "frexp",
    "hypot",
    "ilogb",
    "ldexp",
    "lgamma",
    "llrint",
    "llround",
    "log",
    "log10",
    "log1p",
    "log2",
    "logb",
    "lrint",
    "lround",
    "modf",
    "nan",
    "nearbyint",
    "nextafter",
    "nexttoward",
    "pow",
    "remainder",
    "remquo",
    "rint",
    "round",
    "roundeven",
    "scalbln",
    "scalbn",
    "sin",
    "sincos",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
    "tgamma",
    "trunc",
    "__fpclassify",
    "__signbit",
    "__isnan",
    "__isinf",
    "__finite",
    "j0",
    "j1",
    "jn",
    "y0",
    "y1",
    "yn",
]
_MEMORY = [
    "memcpy",
    "memmove",
    "memset",
    "memcmp",
    "memchr",
    "mempcpy",
    "strlen",
    "__memcpy_chk",
    "__memmove_chk",
    "__memset_chk",
    "malloc",
    "calloc",
    "realloc",
    "free",
    "aligned_alloc",
    "posix_memalign",
    "qsort",
    "bsearch",
    "abs",
    "labs",
    "llabs",
    "div",
    "ldiv",
    "_Znwm",
    "_Znam",
    "_ZnwmSt11align_val_t",
    "_ZnamSt11align_val_t",
    "_ZnwmRKSt9nothrow_t",
    "_ZnamRKSt9nothrow_t",
    "_ZdlPv",
    "_ZdaPv",
    "_ZdlPvm",
    "_ZdaPvm",
    "_ZdlPvSt11align_val_t",
    "_ZdaPvSt11align_val_t",
    "_ZdlPvmSt11align_val_t",
    "_ZdaPvmSt11align_val_t",
]
_RUNTIME = [
    "abort",
    "__assert_fail",
    "__stack_chk_fail",
    "__tls_get_addr",
    "__cxa_guard_acquire",
    "__cxa_guard_release",
    "__cxa_guard_abort",
    "__cxa_pure_virtual",
    "__cxa_throw_bad_array_new_length",
    "_ZSt9terminatev",
    "_ZSt17__throw_bad_allocv",
    "_ZSt20__throw_length_errorPKc",
    "_ZSt28__throw_bad_array_new_lengthv",
    "_ZSt25__throw_bad_function_callv",
    "_ZSt24__throw_out_of_range_fmtPKcz",
    "_ZSt20__throw_out_of_rangePKc",
    "_ZSt24__throw_invalid_argumentPKc",
    "__gxx_personality_v0",
    "_Unwind_Resume",
    "__cxa_begin_catch",
    "__cxa_end_catch",
    "__cxa_finalize",
    "__gmon_start__",
    "_ITM_deregisterTMCloneTable",
    "_ITM_registerTMCloneTable",
    "_GLOBAL_OFFSET_TABLE_",
    "__cpu_model",
    "__cpu_indicator_init",
]
_OPENMP = [
    "omp_get_thread_num",
    "omp_get_num_threads",
    "omp_get_max_threads",
    "omp_get_num_procs",
    "omp_in_parallel",
    "omp_set_num_threads",
    "omp_get_level",
    "omp_get_active_level",
    "omp_get_team_num",
    "omp_get_num_teams",
    "omp_get_dynamic",
    "omp_set_dynamic",
    "omp_get_nested",
    "omp_init_lock",
    "omp_destroy_lock",
    "omp_set_lock",
    "omp_unset_lock",
    "omp_test_lock",
    "omp_get_thread_limit",
]
ALLOWED = frozenset(_MEMORY + _RUNTIME + _OPENMP + [name + end for name in _MATH for end in ("", "f", "l")])
ALLOWED_PATTERN = re.compile(
    r"GOMP_(parallel|loop|barrier|critical|atomic|single|sections|task|ordered|reduction|workshare|scope|teams|doacross)\w*$"
    r"|GOMP_(cancel|cancellation_point)$"
    r"|_ZGV[a-zA-Z0-9]+v+l*_\w+$"  # vector math of libmvec
    r"|__\w+_finite$"
)
LIBRARIES = re.compile(
    r"^(libc\.so\.6|libm\.so\.6|libgomp\.so\.1|libmvec\.so\.1|libgcc_s\.so\.1|libstdc\+\+\.so\.6|ld-linux[-\w]*\.so\.\d)$"
)
# Better words than "not on the list" for what is tried most.
REASONS = {
    "fork execve system popen posix_spawn clone vfork": "starts processes",
    "socket connect send recv getaddrinfo": "uses the network",
    "open openat fopen read write creat mmap mprotect": "opens files or maps memory",
    "dlopen dlsym dl_iterate_phdr": "looks up code at run time",
    "pthread_create thrd_create _ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE": "starts threads; use OpenMP",
    "syscall ptrace prctl": "talks to the kernel",
    "clock_gettime gettimeofday time clock omp_get_wtime _ZNSt6chrono3_V212steady_clock3nowEv": "reads the clock",
    "printf puts putchar fprintf __printf_chk fwrite _ZSt4cout": "prints",
    "rand srand random drand48": "makes random numbers",
    "getenv setenv": "reads the environment",
    "__cxa_atexit atexit": "runs code when the library is unloaded (an object with a destructor at global scope)",
    "GOMP_offload_register_ver GOMP_target_ext": "offloads to another device",
}
_WHY = {name: why for names, why in REASONS.items() for name in names.split()}
_FORBIDDEN_TAGS = {
    elf.DT_INIT: "has a start-up routine", elf.DT_FINI: "has a shut-down routine",
    elf.DT_INIT_ARRAY: "runs code when it is loaded (a constructor or a global object)",
    elf.DT_PREINIT_ARRAY: "runs code when it is loaded", elf.DT_FINI_ARRAY: "runs code when it is unloaded",
    elf.DT_RPATH: "names library folders", elf.DT_RUNPATH: "names library folders",
    elf.DT_AUDIT: "names an audit library", elf.DT_DEPAUDIT: "names an audit library",
    elf.DT_AUXILIARY: "names a filter library", elf.DT_FILTER: "names a filter library",
    elf.DT_CONFIG: "names a loader configuration", elf.DT_TEXTREL: "rewrites its own code when it is loaded",
}  # fmt: skip
_IRELATIVE = {62: 37, 183: 1032}  # machine -> relocation that calls a resolver (x86-64, AArch64 psABI)


def audit_imports(data: bytes, entry: str = "forge_launch") -> Problem | dict[str, Any]:
    """The first refusal, or facts for the report: imports, libraries, text_bytes, data_bytes, exports."""
    try:
        binary = Elf(data)
        dynamic = binary.dynamic()
        symbols = binary.symbols(elf.SHT_DYNSYM)
        libraries = binary.needed()
        relocations = binary.relocation_types()
    except ElfError as error:
        return Problem("candidate", "load error", f"the built library can't be read: {error}")
    exports = sorted(s.name for s in symbols if not s.undefined and s.binding != elf.STB_LOCAL and s.name)
    imports = sorted(s.name for s in symbols if s.undefined and s.name)
    problem = (
        _load_time(dynamic, relocations, symbols, binary)
        or _imports(imports, libraries)
        or _segments(binary)
        or _entry(exports, entry)
    )
    if problem is not None:
        return problem
    sizes = {s.name: s.size for s in binary.sections}
    return {
        "text_bytes": sizes.get(".text", 0),
        "data_bytes": sum(sizes.get(n, 0) for n in (".rodata", ".data", ".bss", ".data.rel.ro")),
        "imports": imports,
        "libraries": list(libraries),
        "exports": exports,
    }


def _load_time(
    dynamic: tuple[tuple[int, int], ...], relocations: frozenset[int], symbols: tuple[elf.Symbol, ...], binary: Elf
) -> Problem | None:
    """H06: nothing of the candidate may run before the judge calls it."""
    for tag, _ in dynamic:
        if tag in _FORBIDDEN_TAGS:
            return _refuse(f"the library {_FORBIDDEN_TAGS[tag]}")
    if _IRELATIVE.get(binary.machine) in relocations or any(s.kind == elf.STT_GNU_IFUNC for s in symbols):
        return _refuse("the library runs a resolver when it is loaded (ifunc or target_clones)")
    return None


def _imports(imports: list[str], libraries: tuple[str, ...]) -> Problem | None:
    for name in imports:
        if name not in ALLOWED and not ALLOWED_PATTERN.match(name):
            return _refuse(f"the library imports {name[:80]}, which {_WHY.get(name, 'is not on the list of a kernel')}")
    for library in libraries:
        if not LIBRARIES.match(library):
            return _refuse(f"the library needs {library[:80]}, which is not on the list")
    return None


def _segments(binary: Elf) -> Problem | None:
    for segment in binary.segments:
        if segment.kind == elf.PT_LOAD and segment.flags & elf.PF_W and segment.flags & elf.PF_X:
            return _refuse("the library has memory that is writable and executable")
        if segment.kind == elf.PT_GNU_STACK and segment.flags & elf.PF_X:
            return _refuse("the library asks for an executable stack (a nested function?)")
        if segment.kind == elf.PT_INTERP:
            return _refuse("the file is a program, not a library")
    return None


def _entry(exports: list[str], entry: str) -> Problem | None:
    if entry in exports:
        return None
    return Problem(
        "candidate", "load error",
        f'the library has no {entry}: include "card.h" and define extern "C" int {entry}(const forge_args*)',
    )  # fmt: skip


def _refuse(line: str) -> Problem:
    return Problem("candidate", "static audit", line)
