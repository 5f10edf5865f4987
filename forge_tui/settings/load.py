"""Reads settings: defaults < file < environment < flags, and remembers where each value came from.

Invariants: a value that doesn't fit is an error that names its place; nothing is guessed. Saving changes one line
of the user's file, keeps the rest byte for byte, and is checked by reading it back before the file is replaced.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forge_tui.records.problem import MachineProblem, UserInputError
from forge_tui.settings.schema import Settings, known, quoted, text_of

PREFIX = "FORGE_"
# Variables of ours that are no settings: places, and what our own child processes are given.
NOT_SETTINGS = frozenset({"FORGE_HOME", "FORGE_CONFIG", "FORGE_FD", "FORGE_CACHE", "FORGE_PYTHON", "FORGE_VENV"})
SECTION = re.compile(r"^\s*\[\s*([A-Za-z0-9_-]+)\s*\]\s*(?:#.*)?$")
ASSIGNMENT = re.compile(r"^\s*(?:\"((?:[^\"\\]|\\.)*)\"|'([^']*)'|([A-Za-z0-9_.-]+))\s*=")


@dataclass(frozen=True)
class LoadedSettings:
    """settings, with the source of each key that isn't a default ("file", "environment", "flag").

    file: where they were read from or would be saved. warnings: one line each, for things that were left aside.
    """

    settings: Settings
    file: Path
    sources: dict[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()

    def source(self, key: str) -> str:
        return self.sources.get(key, "default")


def config_file(environment: Mapping[str, str] | None = None) -> Path:
    """FORGE_CONFIG, else config.toml in the user's configuration folder."""
    environment = os.environ if environment is None else environment
    given = environment.get("FORGE_CONFIG")
    if given:
        return Path(given).expanduser()
    import platformdirs

    return Path(platformdirs.user_config_dir("forge-tui", appauthor=False)) / "config.toml"


def load(
    flags: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> LoadedSettings:
    """Settings in force. flags: key -> text or value ("search.c": "0.5"); None values are skipped.

    Raises UserInputError with file, line and key, or the variable, or the flag.
    """
    environment = os.environ if environment is None else environment
    path = config_file(environment) if file is None else file
    sources: dict[str, str] = {}
    settings = _from_file(Settings(), path, bool(environment.get("FORGE_CONFIG")) or file is not None, sources)
    settings, warnings = _from_environment(settings, environment, sources)
    for key, value in (flags or {}).items():
        if value is not None:
            settings = _set(settings, key, value, f"--set {key}")
            sources[key] = "flag"
    return LoadedSettings(settings, path, sources, tuple(warnings))


def _from_file(settings: Settings, path: Path, named: bool, sources: dict[str, str]) -> Settings:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        if named and not path.parent.is_dir():
            raise UserInputError(f"there is no folder {path.parent} for the settings file") from None
        return settings
    except UnicodeDecodeError:
        raise UserInputError(f"{path} is not UTF-8 text") from None
    except OSError as error:
        raise UserInputError(f"{path} can't be read: {error.strerror}") from None
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserInputError(f"{path} is not valid TOML: {_first_lower(str(error))}") from None
    except RecursionError:
        raise UserInputError(f"{path} is nested too deep") from None
    keys: dict[str, str] = {}
    for section, content in data.items():
        if not isinstance(content, dict):
            raise UserInputError(f"{_place(path, text, '', section)}: {_unknown(section)}")
        if section == "keys":
            keys = _keymap(path, text, content)
            continue
        for name, value in content.items():
            key = f"{section}.{name}"
            settings = _set(settings, key, value, _place(path, text, section, name))
            sources[key] = "file"
    sources.update({f"keys.{action}": "file" for action in keys})
    return _with_keys(settings, keys)


def _with_keys(settings: Settings, keys: dict[str, str]) -> Settings:
    from dataclasses import replace

    return replace(settings, keys={**settings.keys, **keys})


def _keymap(path: Path, text: str, content: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Action id -> keys; `session.pause = "p"` and `"session.pause" = "p"` mean the same."""
    found: dict[str, str] = {}
    for name, value in content.items():
        action = f"{prefix}{name}"
        if isinstance(value, dict):
            found |= _keymap(path, text, value, f"{action}.")
        elif isinstance(value, str):
            found[action] = value
        elif isinstance(value, list) and all(isinstance(item, str) for item in value):
            found[action] = ",".join(value)
        else:
            raise UserInputError(f'{_place(path, text, "keys", name)}: keys are text, such as "space,P"')
    return found


def _from_environment(
    settings: Settings, environment: Mapping[str, str], sources: dict[str, str]
) -> tuple[Settings, list[str]]:
    variables = {entry.environment: key for key, entry in known().items()}
    warnings = []
    for variable in sorted(environment):
        if not variable.startswith(PREFIX) or variable in NOT_SETTINGS:
            continue
        key = variables.get(variable)
        if key is None:
            near = difflib.get_close_matches(variable, variables, 1)
            warnings.append(f"{variable} is no setting" + (f"; did you mean {near[0]}?" if near else ""))
            continue
        settings = _set(settings, key, environment[variable], variable)
        sources[key] = "environment"
    return settings, warnings


def _set(settings: Settings, key: str, value: Any, place: str) -> Settings:
    if key.startswith("keys.") and isinstance(value, str):
        return _with_keys(settings, {key.removeprefix("keys."): value})
    if key not in known():
        raise UserInputError(f"{place}: {_unknown(key)}")
    try:
        return settings.with_value(key, value)
    except ValueError as error:
        raise UserInputError(f"{place}: {error}") from None


def _unknown(key: str) -> str:
    near = nearest(key, known())
    return f"unknown setting {key!r}" + (f"; did you mean {near!r}?" if near else "; `forge-tui settings` lists them")


def nearest(key: str, names: Iterable[str]) -> str:
    """The known name closest to `key`: by its last part where that is unique, else by likeness; "" for none."""
    candidates = list(names)
    last = key.rpartition(".")[2].lower()
    same = [name for name in candidates if name.rpartition(".")[2] == last]
    if len(same) == 1:
        return same[0]
    close = difflib.get_close_matches(key.lower(), candidates, 1, 0.6)
    if close:
        return close[0]
    leaves = {name.rpartition(".")[2]: name for name in candidates}
    by_leaf = difflib.get_close_matches(last, leaves, 1, 0.75)
    return leaves[by_leaf[0]] if by_leaf else ""


def _place(path: Path, text: str, section: str, name: str) -> str:
    number = line_of(text, section, name)
    return f"{path}, line {number}" if number else str(path)


def line_of(text: str, section: str, name: str) -> int:
    """Line number (from 1) where `name` is set in [section], 0 when it can't be found. tomllib keeps no positions."""
    here = ""
    for number, line in enumerate(text.splitlines(), 1):
        header = SECTION.match(line)
        if header:
            here = header.group(1)
            if not section and here == name:
                return number
            continue
        assignment = ASSIGNMENT.match(line)
        if assignment:
            left = next(group for group in assignment.groups() if group is not None)
            if (here == section and left == name) or (not here and section and left == f"{section}.{name}"):
                return number
    return 0


def save(path: Path, key: str, value: Any) -> None:
    """Set one key in the user's file (made when missing); everything else in it stays as it is.

    Raises UserInputError for a value that doesn't fit or a file whose form can't be edited safely, MachineProblem
    when it can't be written.
    """
    section, _, name = key.partition(".")
    if section == "keys":
        fitted, left = str(value), quoted(name)
    else:
        if key not in known():
            raise UserInputError(_unknown(key))
        try:
            fitted, left = known()[key].check(value), name
        except ValueError as error:
            raise UserInputError(str(error)) from None
    try:
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        edited = _edited(text, section, name, f"{left} = {text_of(fitted)}")
        before, after = tomllib.loads(text), tomllib.loads(edited)
        before.setdefault(section, {})[name] = "none" if fitted is None else fitted
        if before != after:
            raise UserInputError(f"{path} can't be edited safely; set {key} = {text_of(fitted)} there by hand")
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        draft.write_text(edited, encoding="utf-8")
        draft.chmod(0o600)
        draft.replace(path)
    except tomllib.TOMLDecodeError as error:
        raise UserInputError(f"{path} is not valid TOML: {_first_lower(str(error))}") from None
    except UnicodeDecodeError:
        raise UserInputError(f"{path} is not UTF-8 text") from None
    except OSError as error:
        raise MachineProblem(f"{path} can't be written: {error.strerror}") from None


def _edited(text: str, section: str, name: str, assignment: str) -> str:
    lines = text.splitlines(keepends=True)
    at = line_of(text, section, name)
    if at:
        ending = "\n" if lines[at - 1].endswith("\n") else ""
        lines[at - 1] = assignment + ending
        return "".join(lines)
    header = line_of(text, "", section)
    if header:
        if not lines[header - 1].endswith("\n"):
            lines[header - 1] += "\n"
        lines.insert(header, assignment + "\n")
        return "".join(lines)
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
    blank = "\n" if lines else ""
    return "".join(lines) + f"{blank}[{section}]\n{assignment}\n"


def _first_lower(text: str) -> str:
    return text[:1].lower() + text[1:]
