"""Reads a local checkpoint into the user's model: .pt/.pth/.bin with weights_only, or .safetensors with our own reader."""

from __future__ import annotations

import json
import mmap
import struct
import sys
from pathlib import Path
from typing import Any

import torch

from forge_tui.records.problem import UserInputError
from forge_tui.workload.memory import require_room

# safetensors' own dtype names (format description in its README).
_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip
MAX_HEADER = 100 << 20  # bytes; safetensors' own limit


def read_checkpoint(path: Path) -> dict[str, torch.Tensor]:
    """Tensors by name. Raises UserInputError for a file that isn't a plain checkpoint, MachineProblem when too large."""
    if not path.is_file():
        raise UserInputError(f"checkpoint {path} does not exist; give the path of a .pt or .safetensors file")
    try:
        size = path.stat().st_size
        with path.open("rb"):
            pass
    except OSError as error:
        raise UserInputError(f"checkpoint {path} can't be read ({error.strerror}); check its permissions") from None
    require_room(size, f"checkpoint {path.name}")
    if path.suffix == ".safetensors":
        return read_safetensors(path)
    try:
        data = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # noqa: BLE001 - torch.load raises half a dozen types for a broken file
        first = " ".join(str(error).split(".")[0].split())[:160]
        raise UserInputError(
            f"checkpoint {path.name} can't be loaded as plain weights ({type(error).__name__}: {first}); "
            "save it with torch.save(model.state_dict(), path) or as .safetensors"
        ) from None
    tensors = _state_dict(data)
    if not tensors:
        raise UserInputError(f"checkpoint {path.name} holds no tensors by name; save model.state_dict()")
    return tensors


def read_safetensors(path: Path) -> dict[str, torch.Tensor]:
    """Tensors of a .safetensors file, mapped copy-on-write. Raises UserInputError naming what is broken."""
    size = path.stat().st_size
    broken = f"checkpoint {path.name} is not a whole .safetensors file"
    if size < 8 or sys.byteorder != "little":
        raise UserInputError(f"{broken}; download it again")
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        if length > min(size - 8, MAX_HEADER):
            raise UserInputError(f"{broken} (its header claims {length} bytes); download it again")
        try:
            header = json.loads(file.read(length))
        except ValueError:
            raise UserInputError(f"{broken} (its header is not JSON); download it again") from None
        view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    if not isinstance(header, dict):
        raise UserInputError(f"{broken} (its header is no object); download it again")
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        try:
            dtype, shape = _DTYPES[entry["dtype"]], [int(n) for n in entry["shape"]]
            start, end = (int(n) for n in entry["data_offsets"])
            count = 1
            for n in shape:
                count *= n
            wrong = end - start != count * dtype.itemsize or not 0 <= start <= end <= size - 8 - length
        except (KeyError, TypeError, ValueError) as error:
            raise UserInputError(f"{broken} (entry {name!r}: {error}); download it again") from None
        if wrong:
            raise UserInputError(f"{broken} (tensor {name!r} lies outside of it); download it again")
        if count == 0:
            tensors[name] = torch.empty(shape, dtype=dtype)
        else:
            flat = torch.frombuffer(view, dtype=torch.uint8, count=end - start, offset=8 + length + start)
            aligned = flat if (8 + length + start) % dtype.itemsize == 0 else flat.clone()
            tensors[name] = aligned.view(dtype).view(shape)
    return tensors


def load_into(modules: dict[str, torch.nn.Module], tensors: dict[str, torch.Tensor], source: str) -> None:
    """Copy a checkpoint into the watched modules. Raises UserInputError when names or shapes don't fit."""
    tensors = _without_prefix(tensors, "module.")
    for root, module in modules.items():
        prefix = f"{root}." if root else ""
        own = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)} if prefix else tensors
        if prefix and not own and len(modules) == 1:
            own = tensors
        try:
            missing, unexpected = module.load_state_dict(own, strict=False)
        except RuntimeError as error:
            lines = [line.strip() for line in str(error).splitlines() if "size mismatch" in line]
            reason = lines[0] if lines else " ".join(str(error).split())
            raise UserInputError(f"checkpoint {source} doesn't fit the model: {reason[:240]}") from None
        tied = {n for n, _ in module.named_parameters(remove_duplicate=False)} - {
            n for n, _ in module.named_parameters()
        }
        missing = [name for name in missing if name not in tied]
        if missing or (unexpected and len(modules) == 1):
            first = (missing or unexpected)[0]
            counts = f"{len(missing)} names are missing and {len(unexpected)} are unknown"
            raise UserInputError(
                f"checkpoint {source} doesn't fit the model: {counts}, first {first!r}; give the checkpoint of this model"
            )


def _state_dict(data: Any) -> dict[str, torch.Tensor]:
    if not isinstance(data, dict):
        return {}
    for key in ("state_dict", "model_state_dict", "model"):
        if isinstance(data.get(key), dict):
            return _state_dict(data[key])
    return {str(k): v for k, v in data.items() if isinstance(v, torch.Tensor)}


def _without_prefix(tensors: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    if tensors and all(name.startswith(prefix) for name in tensors):
        return {name.removeprefix(prefix): value for name, value in tensors.items()}
    return tensors
