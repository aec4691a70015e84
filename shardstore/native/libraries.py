"""Functions of codecs in libraries that are installed anyway, as pointers for the kernel.

Extension modules of Python bring most of them: their symbols, and those of the libraries that they are linked with, are found by
``dlsym``. Some builds hide them, then the next place is asked. All functions of one use come from one file, which ``dladdr`` names:
a context that one version of a library has made must not be handed to another one.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType


class Use(Enum):
    """What the functions of a library are used for."""

    DECODE_ZSTD = "zstd"
    ENCODE_ZSTD = "zstd, encoding"
    DECODE_BLOSC = "blosc"
    ENCODE_BLOSC = "blosc, encoding"
    DECODE_GZIP = "gzip"
    CRC32C = "crc32c"


@dataclass(frozen=True, slots=True)
class Library:
    """One library: where it may be, and the symbols of its functions, by the use that needs all of them."""

    places: tuple[str, ...]
    """Extension modules of Python, and files or names of shared libraries, which have ``.so`` in them; ``""`` is the process itself."""
    symbols: Mapping[Use, Mapping[str, str]]
    """By field of ``Functions``."""
    version_symbol: str | None = None
    """A function without arguments that returns the version as text."""
    takes_newest: bool = False
    """True: the newest version is taken, and among equals the first place; False: the first place that has the functions."""


LIBRARIES: tuple[Library, ...] = (
    Library(
        # Newer versions are faster: 1.5.7 encodes in 0.75 to 0.8 of the time of 1.5.6. ``_zstd`` is Python 3.14's, of ``compression.zstd``.
        places=("numcodecs.zstd", "libzstd.so.1", "_zstd", "backports.zstd._zstd", "zstandard._cffi"),
        symbols={
            Use.DECODE_ZSTD: {
                "zstd_create_decoder": "ZSTD_createDCtx",
                "zstd_free_decoder": "ZSTD_freeDCtx",
                "zstd_decode": "ZSTD_decompressDCtx",
                "zstd_content_size": "ZSTD_getFrameContentSize",
            },
            Use.ENCODE_ZSTD: {
                "zstd_create_encoder": "ZSTD_createCCtx",
                "zstd_free_encoder": "ZSTD_freeCCtx",
                "zstd_set": "ZSTD_CCtx_setParameter",
                "zstd_encode": "ZSTD_compress2",
                "zstd_bound": "ZSTD_compressBound",
                "zstd_is_error": "ZSTD_isError",
            },
        },
        version_symbol="ZSTD_versionString",
        takes_newest=True,
    ),
    Library(
        places=("numcodecs.blosc", "libblosc.so.1"),
        symbols={
            Use.DECODE_BLOSC: {"blosc_decode": "blosc_decompress_ctx", "blosc_decode_items": "blosc_getitem"},
            Use.ENCODE_BLOSC: {"blosc_encode": "blosc_compress_ctx"},
        },
        version_symbol="blosc_get_version_string",
    ),
    Library(
        places=("zlib", "", "libz.so.1"),
        symbols={
            Use.DECODE_GZIP: {
                "zlib_version": "zlibVersion",
                "inflate_init": "inflateInit2_",
                "inflate": "inflate",
                "inflate_end": "inflateEnd",
            }
        },
        version_symbol="zlibVersion",
    ),
    Library(places=("google_crc32c._crc32c", "libcrc32c.so.1"), symbols={Use.CRC32C: {"crc32c": "crc32c_extend"}}),
)


class Functions(ctypes.Structure):
    """Pointers to functions, in the order of ``kernel.c``; null where one was not found."""

    _fields_ = tuple(
        (field, ctypes.c_void_p)
        for field in (
            *("zstd_create_decoder", "zstd_free_decoder", "zstd_decode", "zstd_content_size"),
            *("zstd_create_encoder", "zstd_free_encoder", "zstd_set", "zstd_encode", "zstd_bound", "zstd_is_error"),
            *("blosc_decode", "blosc_decode_items", "blosc_encode"),
            *("zlib_version", "inflate_init", "inflate", "inflate_end"),
            "crc32c",
        )
    )


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the functions of one use come from."""

    place: str
    """As in ``Library.places``."""
    file: str
    """The file that has the functions: that of the module, or of a library that it is linked with."""
    version: str | None
    """``None``: the library does not say it."""

    def __str__(self) -> str:
        return self.file if self.version is None else f"{self.version} in {self.file}"


@dataclass(frozen=True, slots=True, eq=False)
class FoundFunctions:
    """All functions that were found, and where."""

    functions: Functions
    origins: Mapping[Use, Origin]
    """The uses whose functions are all there."""


def find_functions(libraries: Sequence[Library] = LIBRARIES) -> FoundFunctions:
    """Look the functions up. What is loaded for that stays loaded."""
    functions = Functions()
    origins: dict[Use, Origin] = {}
    for library in libraries:
        loaded = {place: handle for place in library.places if (handle := _load(place)) is not None}
        for use, symbols in library.symbols.items():
            usable = [
                (origin, addresses)
                for place, handle in loaded.items()
                if (addresses := _addresses(handle, symbols.values())) is not None
                and (origin := _origin(place, handle, addresses, library.version_symbol)) is not None
            ]
            if not usable:
                continue
            origin, addresses = max(usable, key=lambda found: _numbers(found[0].version)) if library.takes_newest else usable[0]
            origins[use] = origin
            for field, address in zip(symbols, addresses, strict=True):
                setattr(functions, field, address)
    return FoundFunctions(functions, MappingProxyType(origins))


def _load(place: str) -> ctypes.CDLL | None:
    """Return a library with its symbols; ``None`` if it is not there."""
    file: str | None = place
    if place and ".so" not in place:
        file = _extension_module(place)
        if file is None:
            return None
    try:
        return ctypes.CDLL(file or None)
    except OSError:
        return None


def _extension_module(name: str) -> str | None:
    """Return the file of an extension module, without importing it or its package; ``None`` if it has none."""
    package, _, last = name.rpartition(".")
    try:
        spec = find_spec(package or name)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if not package:
        return spec.origin if spec.origin is not None and spec.origin.endswith(tuple(EXTENSION_SUFFIXES)) else None
    files = (Path(folder, last + suffix) for folder in spec.submodule_search_locations or () for suffix in EXTENSION_SUFFIXES)
    return next((str(file) for file in files if file.is_file()), None)


def _addresses(handle: ctypes.CDLL, symbols: Iterable[str]) -> list[int] | None:
    """Return the addresses of functions; ``None`` if one is missing or hidden."""
    addresses = []
    for symbol in symbols:
        try:
            address = ctypes.cast(getattr(handle, symbol), ctypes.c_void_p).value
        except AttributeError:
            return None
        if address is None:
            return None
        addresses.append(address)
    return addresses


class _SymbolFacts(ctypes.Structure):
    """``Dl_info`` of ``dladdr``."""

    _fields_ = (("file", ctypes.c_char_p), ("base", ctypes.c_void_p), ("symbol", ctypes.c_char_p), ("address", ctypes.c_void_p))


def _file_of(address: int) -> str | None:
    """Return the library that an address lies in."""
    facts = _SymbolFacts()
    is_found = ctypes.CDLL(None).dladdr(ctypes.c_void_p(address), ctypes.byref(facts))
    return os.fsdecode(facts.file) if is_found and facts.file else None


def _origin(place: str, handle: ctypes.CDLL, addresses: Sequence[int], version_symbol: str | None) -> Origin | None:
    """Return where functions come from; ``None`` if they come from several files."""
    files = {_file_of(address) for address in addresses}
    file = files.pop()
    if files or file is None:
        return None
    version = None
    if version_symbol is not None and (found := _addresses(handle, [version_symbol])) is not None and _file_of(found[0]) == file:
        text = ctypes.CFUNCTYPE(ctypes.c_char_p)(found[0])()
        version = None if text is None else text.decode(errors="replace")
    return Origin(place, file, version)


def _numbers(version: str | None) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version or "")))
