"""Which programs read what shardstore writes?

    python benchmarks/readers.py                       # all readers, some minutes; make readers
    python benchmarks/readers.py --only zarrita.js GDAL
    python benchmarks/readers.py --page                # docs/evidence/readers.md of the results in build/readers

Each store of ``reader_stores`` is read by each reader, in a process and an environment of the reader's own, which this program makes below
``build/readers`` from PyPI and npm. The values that come back are compared with those that were written. A reader of the system
(Debian's ``python3-gdal``) takes part where it is installed.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from reader_page import write_page
from reader_program import PART
from reader_stores import CASES, StoreCase, Values

HERE = Path(__file__).parent
BUILD = HERE.parent / "build/readers"
RESULTS = BUILD / "results.json"
PAGE = HERE.parent / "docs/evidence/readers.md"

_SECONDS = 300  # for one reader to read all stores


@dataclass(frozen=True, slots=True)
class Reader:
    """A program that reads: ``function`` of ``reader_program.py`` with ``packages`` from PyPI, or what else is said."""

    name: str
    function: str = ""
    packages: tuple[str, ...] = ()
    versions_of: tuple[str, ...] = ()
    """Packages whose versions matter, the reader itself first."""
    system: str = ""
    """An interpreter of the system, for what comes from Debian."""
    images_only: bool = False
    node: bool = False


READERS: tuple[Reader, ...] = (
    Reader("zarr-python", "zarr_python", ("zarr",), ("zarr",)),
    Reader("zarrs", "zarrs", ("zarrs", "zarr"), ("zarrs", "zarr")),
    Reader("tensorstore", "tensorstore", ("tensorstore",), ("tensorstore",)),
    Reader("zarrita.js", packages=("zarrita", "@zarrita/storage"), versions_of=("zarrita",), node=True),
    Reader("zarrita.py", "zarrita", ("zarrita",), ("zarrita",)),
    Reader("xarray", "xarray", ("xarray", "zarr"), ("xarray", "zarr")),
    Reader("dask", "dask", ("dask[array]", "zarr"), ("dask", "zarr")),
    Reader("anndata", "anndata", ("anndata", "dask[array]", "zarr>=3"), ("anndata", "zarr"), images_only=True),
    Reader("ome-zarr", "ome_zarr", ("ome-zarr",), ("ome-zarr", "zarr"), images_only=True),
    Reader("VirtualiZarr", "virtualizarr", ("virtualizarr[zarr]", "obstore", "xarray"), ("virtualizarr", "zarr")),
    Reader("Icechunk", "icechunk", ("icechunk", "zarr"), ("icechunk", "zarr")),
    Reader("GDAL", "rasterio", ("rasterio", "numpy"), ("GDAL", "rasterio"), images_only=True),
    Reader("GDAL (Debian)", "gdal", versions_of=("GDAL",), system="/usr/bin/python3", images_only=True),
)


@dataclass(frozen=True, slots=True)
class ReaderResult:
    """What became of each case, by name: ``"ok"``, ``"wrong"``, ``"none"`` (not asked), or the error; ``why``: it was not run at all."""

    name: str
    versions: dict[str, str] = field(default_factory=dict)
    cases: dict[str, str] = field(default_factory=dict)
    why: str = ""


# -- environments ------------------------------------------------------------------------------------------------------


def _run(command: Sequence[str | Path], **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True, **options)  # type: ignore[call-overload, no-any-return]


def _python_of(reader: Reader) -> Path:
    """An interpreter that has the packages of the reader; its environment is made where it is not there."""
    if reader.system:
        _run([reader.system, "-c", "import osgeo.gdal"])
        return Path(reader.system)
    place = BUILD / "environments" / reader.function
    stamp = place / ".installed"
    wanted = " ".join(reader.packages)
    if not stamp.exists() or stamp.read_text() != wanted:
        print(f"{reader.name}: installing {wanted}", flush=True)
        _run([sys.executable, "-m", "venv", "--clear", place])
        _run([place / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *reader.packages])
        stamp.write_text(wanted)
    return place / "bin/python"


def _node_of(reader: Reader) -> Path:
    """A directory with the packages, and the program that uses them."""
    place = BUILD / "environments/node"
    place.mkdir(parents=True, exist_ok=True)
    (place / "package.json").write_text('{"type": "module", "private": true}\n')
    if not (place / "node_modules").is_dir():
        print(f"{reader.name}: installing {' '.join(reader.packages)}", flush=True)
        _run(["npm", "install", "--no-audit", "--no-fund", "--silent", *reader.packages], cwd=place)
    shutil.copy(HERE / "reader_program.mjs", place)
    return place


_VERSIONS = """
import json, sys
from importlib.metadata import version
def of(name):
    if name != "GDAL": return version(name)
    try:
        import rasterio; return rasterio.__gdal_version__
    except ImportError:
        from osgeo import gdal; return gdal.__version__
print(json.dumps({name: of(name) for name in sys.argv[1:]}))
"""


# -- reading -----------------------------------------------------------------------------------------------------------


def _read(command: Sequence[str | Path], out: Path, wanted: dict[str, Values], cwd: Path) -> dict[str, str]:
    """What a program that is given the names of the cases behind ``command`` makes of them; it is started again where it dies."""
    found: dict[str, str] = {}
    while left := [name for name in wanted if name not in found]:
        process = [*map(str, command), *left]
        done = subprocess.run(process, cwd=cwd, capture_output=True, text=True, timeout=_SECONDS, check=False)
        begun = ""
        for told in map(json.loads, done.stdout.splitlines()):
            begun = told["case"]
            if "error" in told:
                found[begun] = " ".join(told["error"].split())
            elif "shape" in told:
                found[begun] = "ok" if _is_right(out, begun, tuple(told["shape"]), wanted[begun]) else "wrong"
        if done.returncode and not begun:
            raise RuntimeError(f"{' '.join(process)}: {done.stderr[-2000:]}")
        if done.returncode and begun not in found:
            found[begun] = f"the process died with {done.returncode}"
    return found


def _is_right(out: Path, case: str, shape: tuple[int, ...], wanted: Values) -> bool:
    parts = {"whole": wanted, "part": wanted[PART[: wanted.ndim]]}
    return shape == wanted.shape and all(
        (out / f"{case}.{name}.bin").read_bytes() == values.astype("<i4").tobytes() for name, values in parts.items()
    )


def read_by(reader: Reader, stores: Path, wanted: dict[str, Values]) -> ReaderResult:
    """What the reader makes of each store."""
    out = BUILD / "values" / (reader.function or "node")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    asked = {case.name: wanted[case.name] for case in CASES if case.is_image or not reader.images_only}
    try:
        if reader.node:
            place = _node_of(reader)
            command: list[str | Path] = ["node", "reader_program.mjs", stores, out]
            listed = json.loads(_run(["npm", "ls", "--json"], cwd=place).stdout)["dependencies"]
            versions = {name: listed[name]["version"] for name in reader.versions_of}
            versions["node"] = _run(["node", "--version"]).stdout.strip().removeprefix("v")
        else:
            python, place = _python_of(reader), BUILD
            command = [python, HERE / "reader_program.py", reader.function, stores, out]
            versions = json.loads(_run([python, "-c", _VERSIONS, *reader.versions_of]).stdout)
    except (subprocess.CalledProcessError, FileNotFoundError) as exc:
        said = getattr(exc, "stderr", "") or str(exc)
        return ReaderResult(reader.name, why=f"it could not be installed: {said.strip().splitlines()[-1]}")
    cases = dict.fromkeys((case.name for case in CASES), "none") | _read(command, out, asked, place)
    return ReaderResult(reader.name, versions, cases)


def make_stores(cases: Sequence[StoreCase], root: Path) -> dict[str, Values]:
    """The stores below ``root``, made anew, and the values of each."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    return {case.name: case.make(root / case.name) for case in cases}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", metavar="READER", choices=[reader.name for reader in READERS])
    parser.add_argument("--page", action="store_true", help="write the page of the results that there are")
    parser.add_argument("--output", type=Path, default=PAGE)
    arguments = parser.parse_args()
    known = {found["name"]: found for found in json.loads(RESULTS.read_text())["readers"]} if RESULTS.exists() else {}
    if not arguments.page:
        wanted = make_stores(CASES, BUILD / "stores")
        for reader in READERS:
            if arguments.only is None or reader.name in arguments.only:
                result = read_by(reader, BUILD / "stores", wanted)
                known[reader.name] = asdict(result)
                print(f"{reader.name} {result.versions or result.why}: {result.cases}", flush=True)
        in_order = [known[reader.name] for reader in READERS if reader.name in known]
        RESULTS.write_text(json.dumps({"python": platform.python_version(), "readers": in_order}, indent=1) + "\n")
    write_page(json.loads(RESULTS.read_text()), CASES, arguments.output)
    print(arguments.output)


if __name__ == "__main__":
    main()
