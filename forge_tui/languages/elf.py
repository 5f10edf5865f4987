"""A small reader of 64-bit little-endian ELF files: what the import audit and the cubin report need, and no more.

Invariants: every offset and count is checked against the file before it is used, so broken or hostile bytes give
ElfError and nothing else; work is bounded by MAX_ENTRIES per table. Layout: System V ABI, gABI chapters 4 and 5.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

MAX_ENTRIES = 1 << 17
SHT_SYMTAB, SHT_STRTAB, SHT_DYNAMIC, SHT_NOBITS, SHT_DYNSYM = 2, 3, 6, 8, 11
PT_LOAD, PT_DYNAMIC, PT_INTERP, PT_GNU_STACK = 1, 2, 3, 0x6474E551
PF_X, PF_W = 1, 2
DT_NEEDED, DT_STRTAB, DT_INIT, DT_FINI, DT_RPATH, DT_TEXTREL = 1, 5, 12, 13, 15, 22
DT_INIT_ARRAY, DT_FINI_ARRAY, DT_RUNPATH, DT_FLAGS, DT_PREINIT_ARRAY = 25, 26, 29, 30, 32
DT_CONFIG, DT_DEPAUDIT, DT_AUDIT, DT_AUXILIARY, DT_FILTER = 0x6FFFFEFA, 0x6FFFFEFB, 0x6FFFFEFC, 0x7FFFFFFD, 0x7FFFFFFF
STT_FUNC, STT_GNU_IFUNC = 2, 10
STB_LOCAL, STB_GLOBAL, STB_WEAK = 0, 1, 2


class ElfError(ValueError):
    """The bytes are not an ELF file this reader understands; the message says where it failed."""


@dataclass(frozen=True)
class Section:
    name: str
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    entry_size: int


@dataclass(frozen=True)
class Segment:
    kind: int
    flags: int
    offset: int
    address: int
    file_size: int
    memory_size: int


@dataclass(frozen=True)
class Symbol:
    """section 0: undefined. other: the st_other byte (visibility; in cubins also the kernel mark)."""

    name: str
    kind: int
    binding: int
    other: int
    section: int
    value: int
    size: int

    @property
    def undefined(self) -> bool:
        return self.section == 0


class Elf:
    """One parsed file. Raises ElfError from the constructor or from a method that reads further."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        if len(data) < 64 or data[:4] != b"\x7fELF":
            raise ElfError("not an ELF file")
        if data[4] != 2 or data[5] != 1:
            raise ElfError("not a 64-bit little-endian ELF file")
        (self.kind, self.machine, _, _, phoff, shoff, self.flags, _, phentsize, phnum, shentsize, shnum, shstrndx) = (
            struct.unpack_from("<HHIQQQIHHHHHH", data, 16)
        )
        self.segments = tuple(self._segments(phoff, phentsize, phnum))
        self.sections = tuple(self._sections(shoff, shentsize, shnum, shstrndx))

    def section(self, name: str) -> Section | None:
        return next((s for s in self.sections if s.name == name), None)

    def content(self, section: Section) -> bytes:
        """Bytes of a section; empty for one without content in the file."""
        if section.kind == SHT_NOBITS:
            return b""
        return self._slice(section.offset, section.size, f"section {section.name}")

    def symbols(self, kind: int) -> tuple[Symbol, ...]:
        """Symbols of the table of type `kind` (SHT_DYNSYM or SHT_SYMTAB), the null symbol left out."""
        found = []
        for table in (s for s in self.sections if s.kind == kind):
            content = self.content(table)
            if not 0 < table.link < len(self.sections):
                raise ElfError(f"{table.name} has no string table")
            names = self.content(self.sections[table.link])
            count = len(content) // 24
            if count > MAX_ENTRIES:
                raise ElfError(f"{table.name} has {count} symbols")
            for index in range(1, count):
                name, info, other, section, value, size = struct.unpack_from("<IBBHQQ", content, 24 * index)
                found.append(Symbol(_text(names, name), info & 15, info >> 4, other, section, value, size))
        return tuple(found)

    def dynamic(self) -> tuple[tuple[int, int], ...]:
        """(tag, value) pairs of the dynamic segment up to its null entry."""
        for segment in self.segments:
            if segment.kind == PT_DYNAMIC:
                content = self._slice(segment.offset, segment.file_size, "dynamic segment")
                pairs = []
                for at in range(0, len(content) - 15, 16):
                    tag, value = struct.unpack_from("<qQ", content, at)
                    if tag == 0:
                        break
                    pairs.append((tag, value))
                if len(pairs) > MAX_ENTRIES:
                    raise ElfError("dynamic segment too long")
                return tuple(pairs)
        return ()

    def needed(self) -> tuple[str, ...]:
        """Names of the libraries the loader will bring in."""
        entries = self.dynamic()
        table = next((value for tag, value in entries if tag == DT_STRTAB), None)
        wanted = [value for tag, value in entries if tag == DT_NEEDED]
        if not wanted:
            return ()
        if table is None:
            raise ElfError("libraries are named but there is no string table")
        start = self._file_offset(table)
        return tuple(_text(self.data, start + value) for value in wanted)

    def relocation_types(self) -> frozenset[int]:
        """Types of all relocations with addend."""
        found: set[int] = set()
        for section in self.sections:
            if section.kind == 4:  # SHT_RELA
                content = self.content(section)
                if len(content) // 24 > MAX_ENTRIES:
                    raise ElfError(f"{section.name} is too long")
                found |= {struct.unpack_from("<I", content, at + 8)[0] for at in range(0, len(content) - 23, 24)}
        return frozenset(found)

    def _segments(self, offset: int, entry: int, count: int) -> list[Segment]:
        if count == 0:
            return []
        if entry < 56 or count > MAX_ENTRIES:
            raise ElfError("bad program header table")
        table = self._slice(offset, entry * count, "program headers")
        found = []
        for index in range(count):
            kind, flags, at, address, _, file_size, memory_size, _ = struct.unpack_from(
                "<IIQQQQQQ", table, entry * index
            )
            found.append(Segment(kind, flags, at, address, file_size, memory_size))
        return found

    def _sections(self, offset: int, entry: int, count: int, names_index: int) -> list[Section]:
        if offset == 0:
            return []
        if entry < 64 or count > MAX_ENTRIES:
            raise ElfError("bad section header table")
        table = self._slice(offset, entry * count, "section headers")
        raw = [struct.unpack_from("<IIQQQQIIQQ", table, entry * index) for index in range(count)]
        if names_index >= count:
            if count:
                raise ElfError("section names are missing")
            return []
        _, kind, _, _, start, size, *_ = raw[names_index]
        names = b"" if kind == SHT_NOBITS else self._slice(start, size, "section names")
        return [Section(_text(names, r[0]), r[1], r[2], r[3], r[4], r[5], r[6], r[7], r[9]) for r in raw]

    def _file_offset(self, address: int) -> int:
        for segment in self.segments:
            if segment.kind == PT_LOAD and segment.address <= address < segment.address + segment.file_size:
                return segment.offset + address - segment.address
        raise ElfError(f"address {address:#x} is not in the file")

    def _slice(self, offset: int, size: int, what: str) -> bytes:
        if offset < 0 or size < 0 or offset + size > len(self.data):
            raise ElfError(f"{what} lies outside the file")
        return self.data[offset : offset + size]


def _text(table: bytes, offset: int) -> str:
    if not 0 <= offset < max(len(table), 1):
        raise ElfError("a name lies outside its string table")
    end = table.find(b"\0", offset)
    if end < 0:
        raise ElfError("a name has no end")
    if end - offset > 4096:
        raise ElfError("a name is longer than 4096 bytes")
    return table[offset:end].decode("utf-8", "replace")
