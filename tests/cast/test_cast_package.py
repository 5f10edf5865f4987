"""A .cast file is checked from outside to inside; every way it can be wrong is one clear line."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import castkit as kit
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from forge_tui import cast
from forge_tui.cast import trust
from forge_tui.cast.inspect import describe
from forge_tui.cast.package import MANIFEST, open_cast, read_manifest, write_cast
from forge_tui.records.problem import MachineProblem, UserInputError

X = torch.randn(4, 8)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("package") / "relu.cast"
    kit.cast_file(path, kit.entry_of("relu", kit.key_of("aten::relu", X), kit.RELU))
    return path


def repacked(sound: Path, target: Path, change: dict[str, bytes | None], extra: list[tuple[str, bytes]] = []) -> str:  # noqa: B006
    """A copy of a cast with members replaced (None drops one) and others added without the writer's checks."""
    with zipfile.ZipFile(sound) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            data = change.get(name, old.read(name))
            if data is not None:
                new.writestr(name, data)
        for name, data in extra:
            new.writestr(name, data)
    return str(target)


def changed_manifest(sound: Path, target: Path, **fields: object) -> str:
    with zipfile.ZipFile(sound) as old:
        data = json.loads(old.read(MANIFEST))
    return repacked(sound, target, {MANIFEST: json.dumps(data | fields).encode()})


def refusal(path: str) -> str:
    with pytest.raises(UserInputError) as caught:
        open_cast(path)
    line = str(caught.value)
    assert "\n" not in line and path in line
    return line


def test_a_written_cast_reads_back_equal(sound: Path) -> None:
    package = open_cast(str(sound))
    assert read_manifest(sound) == package.manifest
    assert package.manifest.entries[0].key == kit.key_of("aten::relu", X)
    assert set(package.manifest.members) == set(package.names)
    for name in package.names:
        assert hashlib.sha256(package.read(name)).hexdigest() == package.manifest.members[name]


def test_missing_and_foreign_files(tmp_path: Path) -> None:
    assert "no such file" in refusal(str(tmp_path / "nothing.cast"))
    (tmp_path / "text.cast").write_text("hello")
    assert "not a complete cast" in refusal(str(tmp_path / "text.cast"))
    (tmp_path / "empty.cast").write_bytes(b"")
    assert "not a complete cast" in refusal(str(tmp_path / "empty.cast"))
    with zipfile.ZipFile(tmp_path / "zip.cast", "w") as archive:
        archive.writestr("readme", "hello")
    assert "not a cast" in refusal(str(tmp_path / "zip.cast"))


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9, 0.999])
def test_a_cast_cut_off(sound: Path, tmp_path: Path, part: float) -> None:
    data = sound.read_bytes()
    (tmp_path / "cut.cast").write_bytes(data[: int(len(data) * part)])
    assert "cut off" in refusal(str(tmp_path / "cut.cast"))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_changed_byte_is_refused_or_changes_nothing(sound: Path, data: st.DataObject) -> None:
    raw = bytearray(sound.read_bytes())
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    target = sound.with_name("flipped.cast")
    target.write_bytes(raw)
    good = open_cast(str(sound))
    try:
        package = open_cast(str(target))
        contents = {name: package.read(name) for name in package.names}
    except UserInputError as error:
        assert "\n" not in str(error)
        return
    # The byte belonged to zip's own dates or attributes.
    assert package.manifest == good.manifest
    assert contents == {name: good.read(name) for name in good.names}


def test_a_changed_member_is_named(sound: Path, tmp_path: Path) -> None:
    line = refusal(repacked(sound, tmp_path / "a.cast", {"binaries/relu.so": b"other"}))
    assert "binaries/relu.so" in line and "changed" in line


def test_members_and_manifest_must_agree(sound: Path, tmp_path: Path) -> None:
    assert "differ" in refusal(repacked(sound, tmp_path / "a.cast", {"binaries/relu.so": None}))
    assert "differ" in refusal(repacked(sound, tmp_path / "b.cast", {}, [("extra.so", b"x")]))


@pytest.mark.parametrize(
    "name", ["../evil", "/etc/evil", "a/../../b", "a\\b", "C:evil", "a//b", "./a", "a\nb", "x" * 300]
)
def test_path_traversal_is_refused(sound: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(UserInputError, match="plain relative path"):
        open_cast(repacked(sound, tmp_path / "a.cast", {}, [(name, b"x")]))


def test_links_and_folders_are_refused(sound: Path, tmp_path: Path) -> None:
    target = tmp_path / "a.cast"
    repacked(sound, target, {})
    with zipfile.ZipFile(target, "a") as archive:
        info = zipfile.ZipInfo("link")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(info, "/etc/passwd")
    assert "not a plain file" in refusal(str(target))


def test_doubled_names_are_refused(sound: Path, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="Duplicate"):
        path = repacked(sound, tmp_path / "a.cast", {}, [("binaries/relu.so", b"second")])
    assert "twice" in refusal(path)


def test_a_bomb_is_not_unpacked(sound: Path, tmp_path: Path) -> None:
    target = tmp_path / "bomb.cast"
    repacked(sound, target, {})
    with (
        zipfile.ZipFile(target, "a", zipfile.ZIP_DEFLATED) as archive,
        archive.open("bomb", "w", force_zip64=True) as member,
    ):
        block = b"\0" * (1 << 20)
        for _ in range(257):
            member.write(block)
    assert "over the limit" in refusal(str(target))


def test_a_huge_manifest_is_refused(sound: Path, tmp_path: Path) -> None:
    line = refusal(repacked(sound, tmp_path / "a.cast", {MANIFEST: b" " * (33 << 20)}))
    assert "over the limit" in line


def test_unknown_versions_and_fields(sound: Path, tmp_path: Path) -> None:
    assert "format 2 is not known" in refusal(changed_manifest(sound, tmp_path / "a.cast", format=2))
    assert "update forge_tui" in refusal(changed_manifest(sound, tmp_path / "b.cast", format="x" * 500))
    assert "unknown field" in refusal(changed_manifest(sound, tmp_path / "c.cast", surprise=1))
    assert "not JSON" in refusal(repacked(sound, tmp_path / "d.cast", {MANIFEST: b"[" * 100000}))


def test_the_writer_refuses_what_the_reader_would(sound: Path, tmp_path: Path) -> None:
    package = open_cast(str(sound))
    with pytest.raises(UserInputError, match="missing or not the one"):
        write_cast(tmp_path / "a.cast", package.manifest, {})
    files = {name: package.read(name) for name in package.names}
    with pytest.raises(UserInputError, match="plain relative path"):
        write_cast(tmp_path / "a.cast", package.manifest, files | {"../x": b""})
    with pytest.raises(UserInputError, match="folder you can write to"):
        write_cast(tmp_path / "none" / "a.cast", package.manifest, files)
    assert list(tmp_path.iterdir()) == []


def test_equal_contents_make_equal_files(sound: Path, tmp_path: Path) -> None:
    package = open_cast(str(sound))
    digest = write_cast(tmp_path / "again.cast", package.manifest, {n: package.read(n) for n in package.names})
    assert digest == package.digest


def test_inspect_tells_everything_without_torch(sound: Path) -> None:
    code = f"import sys; sys.path[:]=[p for p in sys.path if p]+[{str(kit.HEADER.parents[1])!r}]\n"
    code += (
        f"from forge_tui.cast.inspect import describe; print(describe({str(sound)!r})); print('torch' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    assert out.splitlines()[-1] == "False"
    for part in (
        "WARNING", "native code", "aten::relu", "4x8 float32", "1.500x [1.400, 1.600]", "installed call 1.300x", "custom kernel",
        "by recipe", "sha256", "every hash matches", "whole model: unknown", "no gradients wanted",
    ):  # fmt: skip
        assert part in out, part


def test_inspect_shows_no_control_bytes(sound: Path, tmp_path: Path) -> None:
    path = changed_manifest(sound, tmp_path / "a.cast", name="x\x1b[2J\n" * 3)
    assert "\x1b" not in describe(path)


def test_host_code_needs_consent(sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("FORGE_ACCEPT_HOST_CODE", raising=False)
    with pytest.raises(UserInputError, match="accept_host_code=True"):
        cast.load(str(sound))
    assert cast.load(str(sound), accept_host_code=True).kernels
    monkeypatch.setenv("FORGE_ACCEPT_HOST_CODE", "1")
    assert cast.load(str(sound)).kernels
    with pytest.raises(UserInputError):
        cast.load(str(sound), accept_host_code=False)
    monkeypatch.delenv("FORGE_ACCEPT_HOST_CODE")
    trust.remember(open_cast(str(sound)).digest)
    assert "written by this user" in cast.load(str(sound)).notes[0]
    trust.trusted_file().chmod(0o666)
    with pytest.raises(UserInputError):
        cast.load(str(sound))


def test_another_cpu_is_refused_with_both_sides_named(tmp_path: Path) -> None:
    made = kit.entry_of("relu", kit.key_of("aten::relu", X), kit.RELU, target="x86-64 avx2 amx_fp99")
    path = kit.cast_file(tmp_path / "other.cast", made)
    with pytest.raises(UserInputError, match=r"amx_fp99.*this machine is x86-64 with .*rebuild=True"):
        cast.load(path, accept_host_code=True)
    loaded = cast.load(path, accept_host_code=True, rebuild=True)
    assert any("rebuilt from source" in note for note in loaded.notes)
    with torch.no_grad(), loaded.active() as installed:
        assert torch.equal(torch.relu(X), X.clamp(min=0))
        assert installed.report().hits == 1
    arm = kit.cast_file(
        tmp_path / "arm.cast", kit.entry_of("relu", kit.key_of("aten::relu", X), kit.RELU, target="aarch64")
    )
    with pytest.raises(UserInputError, match="aarch64"):
        cast.load(arm, accept_host_code=True)


def test_a_rebuild_takes_no_dangerous_option(tmp_path: Path) -> None:
    from dataclasses import replace

    entry, members = kit.entry_of("relu", kit.key_of("aten::relu", X), kit.RELU, target="sparc")
    bad = replace(entry, binaries=(replace(entry.binaries[0], flags=("-O2", "-fplugin=/tmp/x.so")),))
    path = kit.cast_file(tmp_path / "bad.cast", (bad, members))
    with pytest.raises(UserInputError, match="-fplugin"):
        cast.load(path, accept_host_code=True, rebuild=True)


def test_a_rebuild_without_a_compiler_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = kit.cast_file(
        tmp_path / "x.cast", kit.entry_of("relu", kit.key_of("aten::relu", X), kit.RELU, target="sparc")
    )
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(MachineProblem, match=r"no g\+\+"):
        cast.load(path, accept_host_code=True, rebuild=True)


def test_another_torch_version_is_said_and_runs(tmp_path: Path) -> None:
    path = kit.cast_file(
        tmp_path / "old.cast", kit.entry_of("relu", kit.key_of("aten::relu", X), kit.RELU), torch_version="2.11.0"
    )
    loaded = cast.load(path, accept_host_code=True)
    assert any("torch 2.11" in note for note in loaded.notes)
    with torch.no_grad(), loaded.active() as installed:
        torch.relu(X)
        assert installed.report().hits == 1


def test_kernels_unpack_into_a_private_folder(sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    loaded = cast.load(str(sound), accept_host_code=True)
    folder = tmp_path / "forge_tui" / "kernels"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    unpacked = Path(loaded.kernels["relu"].path)
    assert unpacked.stem == hashlib.sha256(unpacked.read_bytes()).hexdigest()
    unpacked.unlink()  # a new file: the loaded one is mapped
    unpacked.write_bytes(b"tampered")
    cast.load(str(sound), accept_host_code=True)
    assert unpacked.stem == hashlib.sha256(unpacked.read_bytes()).hexdigest()
    folder.chmod(0o777)
    with pytest.raises(MachineProblem, match="chmod 700"):
        cast.load(str(sound), accept_host_code=True)


def test_the_kill_switch_loads_nothing(
    sound: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORGE_CAST_OFF", "1")
    loaded = cast.load(str(sound))
    assert loaded.off and not loaded.kernels
    model = torch.nn.ReLU()
    installed = loaded.install(model)
    assert type(model) is torch.nn.ReLU
    assert "not running" in capfd.readouterr().err
    installed.uninstall()
    assert os.environ["FORGE_CAST_OFF"] == "1"
