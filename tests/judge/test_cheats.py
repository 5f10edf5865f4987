"""Cheats and faults of the catalogue as small C++ kernels: each is caught by the check that is there for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import judge_cards as cards
import pytest
from judge_kernels import GELU

from forge_tui.records.plan import Workspace, host_plan
from forge_tui.records.verdict import Verdict

LAUNCH = 'extern "C" int forge_launch(const forge_args* a) {'


def failed(verdict: Verdict) -> str:
    return ", ".join(c.name for c in verdict.checks if c.outcome == "failed")


def rejected(verdict: Verdict, kind: str, check: str) -> None:
    assert verdict.outcome == "rejected", verdict.timing
    assert verdict.problem is not None
    assert (verdict.problem.kind, failed(verdict)) == (kind, check), verdict.problem.line
    assert verdict.timing is None


# Name of the catalogue entry -> (source, kind, check).
ON_GELU: dict[str, tuple[str, str, str]] = {
    "C03 whatever lies in the output memory is the answer": (
        f"{LAUNCH} return 0; }}", "unwritten output", "poison",
    ),
    "C04 the first answer is kept and given again": (
        f"static float* kept; {LAUNCH} if (!kept) {{ kept = (float*)malloc(N * 4); gelu_all(X(0), kept, N); }}"
        " memcpy(Y(0), kept, N * 4); return 0; }",
        "numeric", "error",
    ),
    "C05 answers are cached by the input's address": (
        f"static const void* at[64]; static float* known[64]; static int used; {LAUNCH}"
        " for (int i = 0; i < used; i++) if (at[i] == a->inputs[0].data) { memcpy(Y(0), known[i], N * 4); return 0; }"
        " gelu_all(X(0), Y(0), N);"
        " at[used] = a->inputs[0].data; known[used] = (float*)malloc(N * 4); memcpy(known[used++], Y(0), N * 4); return 0; }",
        "numeric", "error",
    ),
    "C07 works while it is checked, stops when it is timed": (
        f"static int calls; {LAUNCH} if (++calls < 60) gelu_all(X(0), Y(0), N); else memset(Y(0), 0, N * 4); return 0; }}",
        "numeric", "recheck",
    ),
    "C10 the last elements are left as they are": (
        f"{LAUNCH} gelu_all(X(0), Y(0), N - 3); return 0; }}", "unwritten output", "poison",
    ),
    "C12 zeros": (f"{LAUNCH} memset(Y(0), 0, N * 4); return 0; }}", "numeric", "error"),
    "C13 the input handed back": (f"{LAUNCH} memcpy(Y(0), X(0), N * 4); return 0; }}", "numeric", "error"),
    "C17 the output is pointed at the input": (
        f"{LAUNCH} ((forge_tensor*)a->outputs)[0].data = a->inputs[0].data; return 0; }}", "unwritten output", "poison",
    ),
    "C09 scratch values in the input": (
        f"{LAUNCH} gelu_all(X(0), Y(0), N); ((float*)X(0))[5] = 0; return 0; }}", "changed its inputs", "hash",
    ),
    "C24 an error of its own is reported": (f"{LAUNCH} return -3; }}", "launch error", "launch"),
    "it declines the card it was made for": (f"{LAUNCH} return 1; }}", "declined", "launch"),
    "H03 ends early with exit code 0": (f"{LAUNCH} exit(0); }}", "protocol", "protocol"),
    "H15 never comes back": (f"{LAUNCH} for (volatile long i = 0;; i++); return 0; }}", "timeout", "launch"),
    "H16 illegal access": (f"{LAUNCH} *(volatile int*)16 = 1; return 0; }}", "crash", "launch"),
    "B01 one element past the output": (
        f"{LAUNCH} gelu_all(X(0), Y(0), N); Y(0)[N] = 1; return 0; }}", "out of bounds", "guard",
    ),
    "B01 one element before the output": (
        f"{LAUNCH} gelu_all(X(0), Y(0), N); Y(0)[-1] = 1; return 0; }}", "out of bounds", "guard",
    ),
    "B02 one element past the input is read": (
        f"{LAUNCH} gelu_all(X(0), Y(0), N); Y(0)[0] += 0 * X(0)[N]; return 0; }}", "non-finite", "nonfinite",
    ),
    "no entry": ("int other() { return 0; }", "load error", "load"),
}  # fmt: skip
SANDBOXED = {
    "T02 work on a thread of its own": (
        "#include <pthread.h>\nstatic void* later(void*) { return nullptr; }"
        f"{LAUNCH} pthread_t t; if (pthread_create(&t, nullptr, later, nullptr)) abort_thread(); gelu_all(X(0), Y(0), N); return 0; }}"
    ),
    "H10 a socket": f"#include <sys/socket.h>\n{LAUNCH} socket(AF_INET, SOCK_STREAM, 0); gelu_all(X(0), Y(0), N); return 0; }}",
    "H12 fork bomb": f"#include <unistd.h>\n{LAUNCH} for (int i = 0; i < 50; i++) fork(); gelu_all(X(0), Y(0), N); return 0; }}",
    "H17 leaves the process group": (
        f"#include <unistd.h>\n{LAUNCH} if (fork() == 0) {{ setsid(); pause(); }} gelu_all(X(0), Y(0), N); return 0; }}"
    ),
    "H18 traces its parent": (
        f"#include <sys/ptrace.h>\n#include <unistd.h>\n{LAUNCH} ptrace(PTRACE_ATTACH, getppid(), 0, 0); gelu_all(X(0), Y(0), N); return 0; }}"
    ),
    "a program": f'#include <unistd.h>\n{LAUNCH} execl("/bin/true", "true", nullptr); gelu_all(X(0), Y(0), N); return 0; }}',
}


@pytest.mark.parametrize("name", ON_GELU)
def test_a_cheat_is_caught_by_the_check_that_is_there_for_it(name: str, judge: Any, blob_dir: Path) -> None:
    source, kind, check = ON_GELU[name]
    limits = {"time_limit_s": 2.0} if kind == "timeout" else {}
    rejected(judge(cards.gelu(blob_dir, 64, 256), source, limits), kind, check)


@pytest.mark.parametrize("name", SANDBOXED)
def test_the_sandbox_names_what_a_kernel_tried(name: str, judge: Any, session: Any, blob_dir: Path) -> None:
    if session.profile.name != "full":
        pytest.skip(f"sandbox profile is {session.profile.line}")
    source = SANDBOXED[name].replace("abort_thread()", '(fprintf(stderr, "Operation not permitted"), abort())')
    rejected(judge(cards.gelu(blob_dir, 64, 256), source, fast=True), "sandbox", "sandbox")


def test_a_cache_keyed_by_content_is_slow_on_contents_it_has_not_seen(judge: Any, blob_dir: Path) -> None:
    # C05 in its strongest form: always right, and fast only because timed inputs come again.
    source = f"""
    static double sums[256]; static float* known[256]; static int used;
    {LAUNCH} double s = 0; for (long i = 0; i < N; i += 7) s += X(0)[i] * (i % 31 + 1);
      for (int i = 0; i < used; i++) if (sums[i] == s) {{ memcpy(Y(0), known[i], N * 4); return 0; }}
      for (int k = 0; k < 10; k++) gelu_all(X(0), Y(0), N);
      if (used < 256) {{ sums[used] = s; known[used] = (float*)malloc(N * 4); memcpy(known[used++], Y(0), N * 4); }}
      return 0; }}"""
    rejected(judge(cards.gelu(blob_dir, 64, 256), source), "impossible time", "recheck")


def test_a_cache_that_is_filled_early_and_only_looked_up_later_is_found(judge: Any, blob_dir: Path) -> None:
    # C05 again: nothing new is stored once timing has begun, so "new" and "again" contents are equally slow.
    source = f"""
    static double sums[64]; static float* known[64]; static int used, calls;
    {LAUNCH} double s = 0; for (long i = 0; i < N; i += 7) s += X(0)[i] * (i % 31 + 1);
      int call = calls++;
      for (int i = 0; i < used; i++) if (sums[i] == s) {{ memcpy(Y(0), known[i], N * 4); return 0; }}
      for (int k = 0; k < 10; k++) gelu_all(X(0), Y(0), N);
      if (call < 150 && used < 64) {{ sums[used] = s; known[used] = (float*)malloc(N * 4); memcpy(known[used++], Y(0), N * 4); }}
      return 0; }}"""
    rejected(judge(cards.gelu(blob_dir, 64, 256), source), "impossible time", "recheck")


def test_every_other_timed_call_skipped_is_found_by_a_kept_call(judge: Any, blob_dir: Path) -> None:
    # C08: correct while calls come one by one.
    source = f"""static int calls; {LAUNCH} if (++calls < 60 || calls % 2) gelu_all(X(0), Y(0), N);
      else memset(Y(0), 0, N * 4); return 0; }}"""
    rejected(judge(cards.gelu(blob_dir, 64, 256), source, {"search_pairs": 20}, fast=True), "numeric", "recheck")


def test_a_forged_reply_breaks_the_protocol(judge: Any, blob_dir: Path) -> None:
    # T08: the answer is written by the kernel before the work, and the real one follows.
    source = f"""#include <unistd.h>
    {LAUNCH} static int id = 2; id++;
      char frame[128]; int n = snprintf(frame + 4, 100, "{{\\"id\\":%d,\\"status\\":\\"ok\\"}}", id); memcpy(frame, &n, 4);
      write(3, frame, n + 4); const char* fd = getenv("FORGE_FD"); if (fd) write(atoi(fd), frame, n + 4);
      gelu_all(X(0), Y(0), N); return 0; }}"""
    rejected(judge(cards.gelu(blob_dir, 64, 256), source, fast=True), "protocol", "protocol")


CLOCK = """
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <time.h>
static long first_ns;
static int slow_clock(clockid_t id, timespec* t) {
  clock_gettime(id, t);
  long now = t->tv_sec * 1000000000L + t->tv_nsec;
  if (!first_ns) first_ns = now;
  now = first_ns + (now - first_ns) / 4;
  t->tv_sec = now / 1000000000L; t->tv_nsec = now % 1000000000L;
  return 0;
}
static int patch(dl_phdr_info* info, size_t, void*) {
  if (!strstr(info->dlpi_name, "plumbing")) return 0;
  const Elf64_Sym* symbols = nullptr; const char* names = nullptr; const Elf64_Rela* rela[2] = {}; long bytes[2] = {};
  for (int i = 0; i < info->dlpi_phnum; i++) if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
    for (auto* d = (const Elf64_Dyn*)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr); d->d_tag; d++) {
      if (d->d_tag == DT_SYMTAB) symbols = (const Elf64_Sym*)d->d_un.d_ptr;
      if (d->d_tag == DT_STRTAB) names = (const char*)d->d_un.d_ptr;
      if (d->d_tag == DT_JMPREL) rela[0] = (const Elf64_Rela*)d->d_un.d_ptr;
      if (d->d_tag == DT_PLTRELSZ) bytes[0] = d->d_un.d_val;
      if (d->d_tag == DT_RELA) rela[1] = (const Elf64_Rela*)d->d_un.d_ptr;
      if (d->d_tag == DT_RELASZ) bytes[1] = d->d_un.d_val;
    }
  for (int k = 0; k < 2; k++) for (unsigned long i = 0; i < bytes[k] / sizeof(Elf64_Rela); i++) {
    auto& r = rela[k][i];
    if (strcmp(names + symbols[ELF64_R_SYM(r.r_info)].st_name, "clock_gettime")) continue;
    char* slot = (char*)(info->dlpi_addr + r.r_offset);
    mprotect((void*)((long)slot & -4096), 8192, PROT_READ | PROT_WRITE);
    *(void**)slot = (void*)slow_clock;
  }
  return 0;
}
"""


def test_a_slowed_clock_disagrees_with_the_judges(judge: Any, blob_dir: Path) -> None:
    # T06, T07: the plumbing's clock is patched to run at a quarter of its speed.
    source = (
        CLOCK
        + f"static int done; {LAUNCH} if (!done++) dl_iterate_phdr(patch, 0); gelu_all(X(0), Y(0), N); return 0; }}"
    )
    verdict = judge(cards.gelu(blob_dir), source)
    rejected(verdict, "impossible time", "wall")


def test_sums_kept_in_half_precision_miss_the_error_rule(judge: Any, blob_dir: Path) -> None:
    # N02.
    source = f"""{LAUNCH} long n = a->inputs[0].sizes[1];
      for (long r = 0; r < a->inputs[0].sizes[0]; r++) {{ _Float16 s = 0; for (long i = 0; i < n; i++) s += (_Float16)X(0)[r * n + i];
        Y(0)[r] = s; }} return 0; }}"""
    verdict = judge(cards.total(blob_dir), source)
    assert verdict.problem is not None and verdict.problem.kind in ("numeric", "non-finite"), verdict.problem


def test_an_output_taken_for_zeros_is_found(judge: Any, blob_dir: Path) -> None:
    # B07: adds into its output. Which words it gets depends on the trial that meets it first: gelu is 0 in some places.
    source = f"{LAUNCH} for (long i = 0; i < N; i++) Y(0)[i] += gelu1(X(0)[i]) + 0.5f; return 0; }}"
    rejected(judge(cards.gelu(blob_dir, 64, 256), source), "nondeterministic", "determinism")


def test_workspace_taken_for_zeros_is_found(judge: Any, blob_dir: Path) -> None:
    # B07 in the workspace: pages of a new process are zero, a reused workspace is not.
    source = f"""{LAUNCH} float* w = (float*)a->workspace; gelu_all(X(0), Y(0), N);
      for (long i = 0; i < 16; i++) {{ Y(0)[i] += w[i] + 0.5f; w[i] = 0; }} return 0; }}"""
    plan = host_plan(workspace=Workspace("64"))
    rejected(judge(cards.gelu(blob_dir, 64, 256), source, plan=plan, fast=True), "nondeterministic", "determinism")


def test_more_alignment_than_the_card_promises_fails_here(judge: Any, blob_dir: Path) -> None:
    # B09: the card saw 16-byte aligned data once.
    source = f"""#include <immintrin.h>
    {LAUNCH} gelu_all(X(0), Y(0), N); __m256 v = _mm256_setzero_ps();
      for (long i = 0; i < 8; i += 8) {{ __m256 x; asm volatile("vmovaps %1, %0" : "=x"(x) : "m"(*(const __m256*)(X(0) + i))); v = x; }}
      return v[0] == 1234567.0f; }}"""
    rejected(judge(cards.gelu(blob_dir, 64, 256, alignment=16), source, fast=True), "crash", "launch")


def test_a_constructor_runs_confined_and_sees_no_key(judge: Any, session: Any, blob_dir: Path) -> None:
    # H06, H09: what it could read decides what the kernel returns.
    if session.profile.name != "full":
        pytest.skip(f"sandbox profile is {session.profile.line}")
    source = f"""static int seen; __attribute__((constructor)) static void early() {{
      if (getenv("OPENAI_API_KEY")) seen |= 1; if (FILE* f = fopen("/etc/passwd", "r")) seen |= 2;
      char path[64]; snprintf(path, 64, "/proc/%s/environ", getenv("FORGE_PARENT") ? getenv("FORGE_PARENT") : "1");
      if (FILE* f = fopen(path, "r")) seen |= 4; }}
    {LAUNCH} if (seen) return -seen; gelu_all(X(0), Y(0), N); return 0; }}"""
    assert judge(cards.gelu(blob_dir, 64, 256), source, fast=True).outcome == "correct"


def test_a_crash_costs_one_candidate(judge: Any, blob_dir: Path) -> None:
    card = cards.gelu(blob_dir, 64, 256)
    assert judge(card, f"{LAUNCH} abort(); }}").outcome == "rejected"
    verdict = judge(card, GELU, fast=True)
    assert verdict.outcome == "correct", verdict.problem


def test_llm_host_code_needs_the_full_sandbox_or_consent(judge: Any, session: Any, blob_dir: Path) -> None:
    from forge_tui.sandbox.profile import profile_of

    card, before = cards.gelu(blob_dir, 64, 256), session.profile
    session.profile = profile_of(before.layers | {"landlock": "switched off for this test"})
    try:
        refused = judge(card, GELU, fast=True, proposer="llm")
        allowed = judge(card, GELU, fast=True, proposer="recipe")
    finally:
        session.profile = before
    rejected(refused, "sandbox", "sandbox")
    assert refused.problem is not None and "trust_host_code" in refused.problem.line
    assert allowed.outcome == "correct"
    assert next(c for c in allowed.checks if c.name == "sandbox").outcome == "unknown"


def test_a_plan_that_asks_for_the_moon_is_refused(judge: Any, blob_dir: Path) -> None:
    plan = host_plan(workspace=Workspace("in0_numel * 1000000"))
    rejected(judge(cards.gelu(blob_dir, 64, 256), GELU, plan=plan), "bad plan", "plan")
