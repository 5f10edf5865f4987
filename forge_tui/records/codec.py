"""Records to JSON and back, refusing what does not fit.

The judge reads bytes that a hostile worker may have written and runs inside the
user's interpreter, so this is standard library only and never guesses: unknown
fields, missing fields and wrong types are errors with the path to the field.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import types
import typing
from typing import Any, TypeVar

T = TypeVar("T")
MAX_DEPTH = 40


class RecordError(ValueError):
    """A JSON value does not fit the record; the message names the field."""


def to_json(value: Any) -> Any:
    """Turn a record (or tuple, dict, scalar) into plain JSON values.

    Non-finite floats become None: a missing number reads "unknown", never 0.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, (list, tuple)):
        return [to_json(v) for v in value]
    if isinstance(value, dict):
        return {str(k): to_json(v) for k, v in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise RecordError(f"{type(value).__name__} can't be stored in a record")


def dumps(value: Any) -> str:
    """Canonical text of a record: sorted keys, no blanks, so equal records have equal hashes."""
    return json.dumps(to_json(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def loads(cls: type[T], text: str | bytes) -> T:
    """Parse text into the record `cls`. Raises RecordError."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"not JSON: {error}") from None
    return from_json(cls, data)


def from_json(cls: type[T], data: Any) -> T:
    """Build the record `cls` from JSON values. Raises RecordError with the field's path."""
    return typing.cast(T, _build(cls, data, cls.__name__, 0))


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _build(kind: Any, data: Any, path: str, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise RecordError(f"{path}: nested too deep")
    if kind is Any:
        return data
    origin = typing.get_origin(kind)
    if origin in (typing.Union, types.UnionType):
        return _union(typing.get_args(kind), data, path, depth)
    if origin is tuple:
        return _tuple(typing.get_args(kind), data, path, depth)
    if origin is dict:
        if not isinstance(data, dict):
            raise RecordError(f"{path}: expected an object, got {type(data).__name__}")
        value_kind = typing.get_args(kind)[1]
        return {k: _build(value_kind, v, f"{path}.{k}", depth + 1) for k, v in data.items()}
    if dataclasses.is_dataclass(kind):
        return _record(typing.cast(type, kind), data, path, depth)
    return _scalar(kind, data, path)


def _scalar(kind: Any, data: Any, path: str) -> Any:
    if kind is float:
        if isinstance(data, bool) or not isinstance(data, (int, float)):
            raise RecordError(f"{path}: expected a number, got {type(data).__name__}")
        try:
            return float(data)
        except OverflowError:
            raise RecordError(f"{path}: number too large") from None
    if kind is int:
        if isinstance(data, bool) or not isinstance(data, int):
            raise RecordError(f"{path}: expected a whole number, got {type(data).__name__}")
        return data
    if kind in (str, bool):
        if not isinstance(data, kind):
            raise RecordError(f"{path}: expected {kind.__name__}, got {type(data).__name__}")
        return data
    if kind is type(None):
        if data is not None:
            raise RecordError(f"{path}: expected null")
        return None
    raise RecordError(f"{path}: field type {kind!r} is not supported")


def _union(kinds: tuple[Any, ...], data: Any, path: str, depth: int) -> Any:
    if data is None and type(None) in kinds:
        return None
    errors = []
    for kind in kinds:
        if kind is type(None):
            continue
        try:
            return _build(kind, data, path, depth)
        except RecordError as error:
            errors.append(str(error))
    raise RecordError("; or ".join(errors) or f"{path}: null is not allowed")


def _tuple(kinds: tuple[Any, ...], data: Any, path: str, depth: int) -> Any:
    if not isinstance(data, (list, tuple)):
        raise RecordError(f"{path}: expected a list, got {type(data).__name__}")
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        return tuple(_build(kinds[0], v, f"{path}[{i}]", depth + 1) for i, v in enumerate(data))
    if len(kinds) != len(data):
        raise RecordError(f"{path}: expected {len(kinds)} values, got {len(data)}")
    return tuple(_build(k, v, f"{path}[{i}]", depth + 1) for i, (k, v) in enumerate(zip(kinds, data, strict=True)))


def _record(cls: type, data: Any, path: str, depth: int) -> Any:
    if not isinstance(data, dict):
        raise RecordError(f"{path}: expected an object, got {type(data).__name__}")
    hints = _hints(cls)
    values = {}
    for f in dataclasses.fields(cls):
        if f.name in data:
            values[f.name] = _build(hints[f.name], data[f.name], f"{path}.{f.name}", depth + 1)
        elif f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
            raise RecordError(f"{path}.{f.name}: missing")
    unknown = sorted(set(data) - {f.name for f in dataclasses.fields(cls)})
    if unknown:
        raise RecordError(f"{path}: unknown field {unknown[0]!r}")
    try:
        return cls(**values)
    except ValueError as error:
        raise RecordError(f"{path}: {error}") from None
