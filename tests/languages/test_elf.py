"""Our ELF reader against real libraries and against broken bytes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge_tui.languages import elf
from forge_tui.languages.cubin import kernels_of
from forge_tui.languages.elf import Elf, ElfError
from forge_tui.languages.imports import audit_imports

SOURCE = """
#include <math.h>
#include <stdlib.h>
extern "C" int forge_launch(const void* a) { double s = 0;
#pragma omp parallel for reduction(+:s)
  for (int i = 0; i < 100; i++) s += sin(i);
  void* volatile p = malloc(s); free(p); return s < 0; }
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    if shutil.which("g++") is None:
        pytest.skip("no g++ here")
    folder = tmp_path_factory.mktemp("elf")
    (folder / "a.cpp").write_text(SOURCE)
    command = ["g++", "-O2", "-fopenmp", "-shared", "-fPIC", "-nostartfiles", "a.cpp", "-o", "a.so"]
    subprocess.run(command, cwd=folder, check=True)
    return (folder / "a.so").read_bytes()


def test_symbols_and_libraries_agree_with_binutils(library: bytes, tmp_path: Path) -> None:
    if shutil.which("nm") is None or shutil.which("objdump") is None:
        pytest.skip("no binutils here")
    (tmp_path / "a.so").write_bytes(library)
    undefined = subprocess.run(
        ["nm", "-D", "--undefined-only", "a.so"], cwd=tmp_path, capture_output=True, text=True
    ).stdout
    dynamic = subprocess.run(["objdump", "-p", "a.so"], cwd=tmp_path, capture_output=True, text=True).stdout
    binary = Elf(library)
    ours = {s.name for s in binary.symbols(elf.SHT_DYNSYM) if s.undefined}
    assert ours == {line.split()[-1].split("@")[0] for line in undefined.splitlines()}
    assert list(binary.needed()) == [line.split()[1] for line in dynamic.splitlines() if "NEEDED" in line]


def test_a_plain_kernel_passes_the_import_audit_with_its_facts(library: bytes) -> None:
    facts = audit_imports(library)
    assert isinstance(facts, dict)
    assert {"sin", "malloc", "free", "GOMP_parallel"} <= set(facts["imports"])
    assert facts["exports"] == ["forge_launch"] and facts["text_bytes"] > 0


def test_an_interpreters_library_is_refused_with_the_reason() -> None:
    system = next((p for p in Path("/lib/x86_64-linux-gnu").glob("libstdc++.so.6*")), None)
    if system is None:
        pytest.skip("no libstdc++ in the usual place")
    problem = audit_imports(system.read_bytes())
    assert not isinstance(problem, dict) and problem.kind == "static audit"


@settings(max_examples=250, deadline=None)
@given(data=st.data())
def test_broken_bytes_give_an_elf_error_and_nothing_else(library: bytes, data: st.DataObject) -> None:
    broken = bytearray(library)
    for _ in range(data.draw(st.integers(1, 12))):
        # half of the changes hit the headers, where offsets and counts lie
        limit = 64 if data.draw(st.booleans()) else len(broken)
        broken[data.draw(st.integers(0, limit - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(broken)))
    candidate = bytes(broken[: cut if data.draw(st.booleans()) else len(broken)])
    result = audit_imports(candidate)
    assert isinstance(result, dict) or result.kind in ("load error", "static audit")
    for read in (Elf, kernels_of):
        try:
            read(candidate)
        except ElfError as error:
            assert str(error)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=400))
def test_arbitrary_bytes_after_a_good_start_are_refused(tail: bytes) -> None:
    with pytest.raises(ElfError):
        kernels_of(b"\x7fELF\x02\x01\x01" + tail)
