"""Captured tensors as content-addressed private files: blobs/<first two hex>/<sha256>, mode 0600.

A file holds the raw bytes of a tensor's touched storage window (from its first element to its last), so strides are
kept and nothing is pickled. Written to a temporary name in the same folder and renamed: a file under its final name
is whole. Same layout as the session's blob store.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import os
import tempfile
from pathlib import Path

import torch

from forge_tui.records.card import TensorBlob
from forge_tui.records.problem import MachineProblem

STATS_CHUNK = 1 << 22  # elements widened to float64 at a time


class BlobWriter:
    """Saves tensors under `folder` within a budget of `budget` new bytes. stored: bytes of distinct blobs so far."""

    def __init__(self, folder: Path, budget: int) -> None:
        self.folder = folder
        self.budget = budget
        self.stored = 0
        self._written: set[str] = set()
        self._parameters: dict[tuple[object, ...], TensorBlob] = {}

    def save(self, tensor: torch.Tensor, parameter: str = "") -> TensorBlob:
        """Store the tensor's window and describe it; statistics only when the budget does not hold it."""
        identity = (tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride(), _version(tensor))
        if parameter and identity in self._parameters:
            return self._parameters[identity]
        sizes, strides = tuple(tensor.shape), tuple(tensor.stride())
        elements = window_elements(sizes, strides)
        nbytes = elements * tensor.element_size()
        dtype = str(tensor.dtype).removeprefix("torch.")
        digest = ""
        if self.stored + nbytes <= self.budget:
            digest = self._store(tensor, elements)
        blob = TensorBlob(digest, sizes, strides, dtype, nbytes, parameter, statistics(tensor))
        if parameter:
            self._parameters[identity] = blob
        return blob

    def digest_of(self, tensor: torch.Tensor) -> str:
        """sha256 of the touched window, without storing it."""
        flat = window_bytes(tensor)
        return hashlib.sha256(_view(flat)).hexdigest()

    def _store(self, tensor: torch.Tensor, elements: int) -> str:
        flat = window_bytes(tensor)
        view = _view(flat)
        digest = hashlib.sha256(view).hexdigest()
        if digest not in self._written:
            self._write(digest, view)
            self._written.add(digest)
            self.stored += len(view)
        return digest

    def _write(self, digest: str, view: memoryview) -> None:
        place = self.folder / digest[:2]
        target = place / digest
        if target.exists() and target.stat().st_size == len(view):
            return
        try:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor, name = tempfile.mkstemp(dir=place, prefix=".new-")  # mode 0600
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(view)
                Path(name).replace(target)
            except BaseException:
                with contextlib.suppress(OSError):
                    Path(name).unlink()
                raise
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES):
                raise MachineProblem(
                    f"captured inputs can't be written to {self.folder} ({error.strerror}); free some space or choose another folder"
                ) from None
            raise


def window_elements(sizes: tuple[int, ...], strides: tuple[int, ...]) -> int:
    """Elements from the first to the last one touched; 0 for an empty tensor."""
    if any(n == 0 for n in sizes):
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))


def window_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The window as a contiguous uint8 tensor on the CPU; shares memory with a CPU tensor."""
    elements = window_elements(tuple(tensor.shape), tensor.stride())
    flat = torch.as_strided(tensor.detach(), (elements,), (1,), tensor.storage_offset())
    return flat.cpu().view(torch.uint8)


def statistics(tensor: torch.Tensor) -> tuple[float, ...]:
    """(mean, std, min, max) over the finite elements, () when there are none."""
    if tensor.numel() == 0 or tensor.is_complex():
        return ()
    flat = tensor.detach().reshape(-1)
    total = squares = 0.0
    count, low, high = 0, float("inf"), float("-inf")
    for part in flat.split(STATS_CHUNK):
        wide = part.to("cpu", torch.float64)
        mask = torch.isfinite(wide)
        finite = wide if bool(mask.all()) else wide[mask]
        if finite.numel():
            count += finite.numel()
            total += float(finite.sum())
            squares += float((finite * finite).sum())
            low, high = min(low, float(finite.min())), max(high, float(finite.max()))
    if not count:
        return ()
    mean = total / count
    return (mean, max(0.0, squares / count - mean * mean) ** 0.5, low, high)


def _view(flat: torch.Tensor) -> memoryview:
    if flat.numel() == 0:
        return memoryview(b"")
    return memoryview((ctypes.c_char * flat.numel()).from_address(flat.data_ptr())).cast("B")


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version
