"""C++ kernels for the judge's tests, built by the real compiler as a candidate is: compile fast, link plainly."""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from forge_tui.records.candidate import Binary, Candidate
from forge_tui.records.card import Card
from forge_tui.records.judging import JudgeJob
from forge_tui.records.plan import Plan, host_plan

HEADERS = Path(__file__).resolve().parents[2] / "forge_tui" / "languages"
PROLOGUE = r"""
#include "forge_abi.h"
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
static inline long count_of(const forge_tensor& t) { long n = 1; for (int i = 0; i < t.ndim; i++) n *= t.sizes[i]; return n; }
#define X(k) ((const float*)a->inputs[k].data)
#define Y(k) ((float*)a->outputs[k].data)
#define N count_of(a->inputs[0])
static inline float gelu1(float v) {
  float u = 0.7978845608028654f * (v + 0.044715f * v * v * v);
  return 0.5f * v * (1.0f + tanhf(u));
}
static inline void gelu_all(const float* x, float* y, long n) {
#pragma omp parallel for
  for (long i = 0; i < n; i++) y[i] = gelu1(x[i]);
}
"""
GELU = 'extern "C" int forge_launch(const forge_args* a) { gelu_all(X(0), Y(0), N); return 0; }'


def build(
    source: str,
    blob_dir: Path,
    *,
    fast: bool = False,
    report: dict[str, Any] | None = None,
    compile_flags: tuple[str, ...] = (),
    link_flags: tuple[str, ...] = (),
) -> Binary:
    """Compile into the blob folder; equal sources are compiled once."""
    flags = ("-O3", "-march=native", "-fopenmp", "-fPIC", "-w", *(["-ffast-math"] if fast else []), *compile_flags)
    key = hashlib.sha256("\0".join((source, *flags, *link_flags)).encode()).hexdigest()
    blob_dir.mkdir(parents=True, exist_ok=True)
    known = blob_dir / f"built-{key}"
    if not known.exists():
        with tempfile.TemporaryDirectory() as scratch:
            root = Path(scratch)
            (root / "k.cpp").write_text(PROLOGUE + source)
            subprocess.run(["g++", *flags, f"-I{HEADERS}", "-c", "k.cpp", "-o", "k.o"], cwd=root, check=True)
            subprocess.run(["g++", "-shared", "-fopenmp", "k.o", "-o", "k.so", *link_flags], cwd=root, check=True)
            known.write_bytes((root / "k.so").read_bytes())
    raw = known.read_bytes()
    digest = hashlib.sha256(raw).hexdigest()
    path = blob_dir / digest[:2] / digest
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(raw)
    return Binary("cpp", digest, digest, flags, "g++", "x86-64", 0.1, report or {})


def job(
    card: Card,
    source: str,
    blob_dir: Path,
    *,
    plan: Plan | None = None,
    proposer: str = "recipe",
    confirm: bool = False,
    **build_options: Any,
) -> JudgeJob:
    candidate = Candidate("n1", card.card_id, "cpp", "T3", source, plan or host_plan(), proposer)
    return JudgeJob(candidate, build(source, blob_dir, **build_options), confirm)
