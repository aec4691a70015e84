"""``benchmarks/bench.py`` runs each kind of workload, its figures are what they are called, and bars and pages are made of them."""

from __future__ import annotations

import copy
import importlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zarr

ROOT = Path(__file__).parents[3]
BENCHMARKS = ROOT / "benchmarks"
# One of each kind, and whom the bars compare.
WORKLOADS = (
    *("zstd: boxes", "blosc: full write", "arrays opened", "raw: lock", "public: round trip, zstd, sharded, 8 at once, warm"),
    *("planes", "single chunks, warm", "full write", "1 % update", "listing", "hierarchy", "import"),
)
CONTENDERS = (
    *("bytes and codecs", "requests alone", "codecs alone", "shardstore", "shardstore, without its kernel", "zarr-python", "tensorstore"),
    *("import shardstore", "import fsspec, numpy"),
)


def program(name: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(BENCHMARKS / name), *map(str, arguments)], cwd=ROOT, capture_output=True, text=True, timeout=280, check=False
    )


@pytest.fixture(scope="module", params=[pytest.param("tiny", marks=pytest.mark.night)])
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a tiny run on a local disk and over latency."""
    directory = tmp_path_factory.mktemp("benchmarks")
    where = ("--scale", "tiny", "--storage", "local", "latency", "--directory", directory)
    done = program("bench.py", *where, "--json", directory / "results.json", "--only", *WORKLOADS, "--contenders", *CONTENDERS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [path.name for path in directory.iterdir()] == ["results.json"]
    return directory / "results.json"


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Imports a module of the benchmark."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module
    for path in BENCHMARKS.rglob("*.py"):
        sys.modules.pop(".".join(path.relative_to(BENCHMARKS).with_suffix("").parts), None)
    sys.modules.pop("workloads", None)


@pytest.fixture
def run(results: Path, modules: Any) -> Any:
    return modules("results").Run.load(results)


def test_every_kind_of_workload_was_measured(run: Any) -> None:
    for name in WORKLOADS:
        (cell,) = (cell for cell in run.cells if (cell["workload"], cell["storage"]) == (name, "local"))
        for contender, entry in cell["entries"].items():
            assert entry["error"] is None, (name, contender, entry["error"])
            assert entry["rounds"] or entry["left_out"], (name, contender)
        assert any(entry["rounds"] for contender, entry in cell["entries"].items() if "shardstore" in contender)


def test_requests_and_bytes_are_those_of_the_work(run: Any) -> None:
    # Planes of 4 chunks by 4, 2 by 4 and 2 by 4: two along each dimension, in shards of 2 by 2 by 2; and the model's own count agrees.
    # zarr-python reads each chunk by itself, or from 3.4 on the chunks of a shard together; with the index, which it does not keep.
    merges = tuple(map(int, zarr.__version__.split(".")[:2])) >= (3, 4)
    requests = 2 * (4 + 4) + 4 * (2 + 2) if merges else 2 * (4 + 16) + 4 * (2 + 8)
    assert run.median("planes", "latency", "zarr-python", "requests") == requests
    assert run.median("planes", "latency", "requests alone", "requests") == 4 + 16  # indices, and shards that planes cross
    assert run.median("planes", "latency", "shardstore", "requests") == 16  # small shards come with their index
    assert run.median("planes", "latency", "shardstore", "operations") == 6
    assert run.median("planes", "latency", "shardstore", "seconds") >= 6 * run.head["latency_seconds"]
    if sys.platform == "linux":
        written = run.median("full write", "local", "zarr-python", "bytes_written")
        data, index = (run.median("full write", "local", "zarr-python", figure) for figure in ("asked_nbytes", "index_nbytes"))
        assert written == data + 4 * index
        assert written <= run.median("full write", "local", "shardstore", "bytes_written") < 1.01 * written
        assert run.median("full write", "local", "shardstore", "peak_nbytes") >= run.median(
            "full write", "local", "shardstore", "base_nbytes"
        )


def test_contenders_take_turns_in_one_process(run: Any) -> None:
    for name, peers in (("zstd: boxes", 1), ("blosc: full write", 1), ("public: round trip, zstd, sharded, 8 at once, warm", 2)):
        (cell,) = (cell for cell in run.cells if cell["workload"] == name)
        assert cell["is_side_by_side"]
        turns = {contender: len(entry["rounds"]) for contender, entry in cell["entries"].items() if entry["left_out"] is None}
        assert turns.pop("codecs alone", 2) == 2
        assert turns == {"shardstore": 2, "tensorstore": 2, "zarr-python": peers}
        sums = {entry["rounds"][0]["checksum"] for entry in cell["entries"].values()}
        assert len(sums - {None}) == 1


def test_the_share_of_the_lock_is_one_of_the_read(run: Any) -> None:
    shares = [run.median("raw: lock", "local", name, "lock_share") for name in ("shardstore", "shardstore, without its kernel")]
    assert all(share >= 0 for share in shares)


def test_bars_and_pages_are_made_of_it(results: Path, tmp_path: Path) -> None:
    done = program("check.py", results)
    assert done.returncode in (0, 1), done.stderr
    assert done.returncode == int("NOT HELD" in done.stdout)
    assert "held          latency, planes: requests beyond indices and merged ranges ≤ 0: -4" in done.stdout
    assert "not measured  s3, 1 % update: shardstore: uploads" in done.stdout
    done = program("page.py", results, "--output", tmp_path)
    assert done.returncode == 0, done.stderr
    tables = (tmp_path / "benchmark-tables.md").read_text()
    assert "#### Planes across shards, along each dimension" in tables
    assert "- zarr-python is left out: its interface has shards, not chunks" in tables
    page = (tmp_path / "benchmarks.md").read_text()
    assert "\n| Boxes, zstd | " in page
    assert "\n| 1,000 arrays opened, × zarr-python | " in page
    assert "\n| raw | " in page
    assert "\n| Round trip, zstd, sharded, 8 at once | " in page
    assert "| | zarr-python, local | zarr-python, latency |" in page
    assert "| Planes across shards, along each dimension | " in page
    assert "bars were held" in page
    (tmp_path / "benchmarks.md").write_text("An older page.\n" + page[page.index("## What was measured") :])
    assert program("page.py", "--screen", results, "--output", tmp_path).returncode == 0
    assert (tmp_path / "benchmarks.md").read_text() == page
    pictures = sorted(path.name for path in (tmp_path / "benchmarks").iterdir())
    assert [name.partition("-")[0] for name in pictures] == ["latency", "local"]
    assert all(f"](benchmarks/{name})" in page for name in pictures)


def test_the_pages_of_the_documentation_are_those_of_the_program(modules: Any) -> None:
    page = modules("page")
    for name, written in ((page.RESULTS_PAGE, page.results_page([])), (page.TABLES_PAGE, page.tables_page([]))):
        text = (ROOT / "docs/evidence" / name).read_text()
        missing = [line for line in written.splitlines() if line not in text.splitlines()]
        assert missing == [], name


# -- the judges --------------------------------------------------------------------------------------------------------


def test_a_bar_that_is_missed_says_so(run: Any, modules: Any) -> None:
    def status(cells: Any) -> str:
        judged = modules("bars").verdicts(modules("results").Run(run.head, cells))
        (found,) = (verdict for verdict in judged if verdict.bar.startswith("import shardstore"))
        return str(found.status)

    cells = copy.deepcopy(run.cells)
    (entries,) = (cell["entries"] for cell in cells if cell["workload"] == "import")
    entries["import fsspec, numpy"]["rounds"][0]["seconds"] = 1.0
    entries["import shardstore"]["rounds"][0]["seconds"] = 1.49
    assert status(cells) == "held"
    entries["import shardstore"]["rounds"][0]["seconds"] = 1.51
    assert status(cells) == "NOT HELD"
    entries["import shardstore"]["error"] = "it failed"
    assert status(cells) == "not measured"


def side_by_side(workload: str, storage: str, **seconds: float) -> dict[str, Any]:
    entries = {
        name.replace("_", " "): {"rounds": [{"seconds": each, "cpu_seconds": each}], "error": None, "left_out": None}
        for name, each in seconds.items()
    }
    return {"workload": workload, "title": workload, "storage": storage, "entries": entries, "is_side_by_side": True}


def test_a_ratio_of_the_table_is_over_the_best_of_its_peers(modules: Any) -> None:
    bars, results = modules("bars"), modules("results")
    head = {"versions": {"zarr": "3.4.2"}, "kernel": {"zstd, encoding": "1.5.6"}}
    cell = side_by_side("random chunks, far", "far s3", tensorstore=4.0, icechunk=2.0)
    cell["entries"]["shardstore, obstore"] = {"rounds": [{"seconds": 3.0, "cpu_seconds": 1.0}], "error": None, "left_out": None}
    run = results.Run(head, [cell])
    (row,) = (row for row in bars.rows(run) if row.workload == "random chunks, far")
    assert row.ratio(run, bars.TIME) == 1.5
    (verdict,) = (verdict for verdict in bars.table_verdicts(run) if verdict.bar.startswith(row.title))
    assert verdict.status == "NOT HELD"
    assert "the best of tensorstore and icechunk" in verdict.bar


@pytest.mark.parametrize(("version", "bound"), [("1.5.6", 1.2), ("1.5.7", 1.05), (None, 1.2)])
def test_the_bar_of_writes_is_that_of_the_zstd_that_encodes(modules: Any, version: str | None, bound: float) -> None:
    head = {"versions": {"zarr": "3.4.2"}, "kernel": None if version is None else {"zstd, encoding": version}}
    (row,) = (row for row in modules("bars").rows(modules("results").Run(head, [])) if row.workload == "zstd: full write")
    assert row.bound == bound


@pytest.mark.parametrize("codec", ["zstd", "blosc", "raw"])
def test_the_codecs_alone_decode_every_chunk_of_a_selection(modules: Any, tmp_path: Path, codec: str) -> None:
    datasets, contenders, leanest = modules("datasets"), modules("contenders"), modules("leanest")
    form = replace(datasets.SCALES["tiny"].cube, codec=codec)
    datasets.make(tmp_path, "a", form)
    address = contenders.Address(contenders.Place(str(tmp_path)), "a")
    array = leanest.CODECS_ALONE.open(address)
    one = tuple(slice(16, 32) for _ in form.shape)
    array.prepare_read([one])
    assert (array.read(one) == datasets.contents(form)[one]).all()


def test_wrong_values_are_an_error_of_the_one_who_read_them(modules: Any) -> None:
    bench = modules("bench")
    right = {"checksum": 7}
    entries = {"a": [right, right], "b": [right, {"checksum": 8}], "bytes alone": [{"checksum": None}]}
    cell = bench.Cell("w", "W", "local", {name: bench.Entry(rounds) for name, rounds in entries.items()})
    cell.compare()
    assert {name: entry.error is None for name, entry in cell.entries.items()} == {"a": True, "b": False, "bytes alone": True}


def test_a_process_that_fails_is_reported(modules: Any, tmp_path: Path) -> None:
    worker, contenders = modules("worker"), modules("contenders")
    turn = worker.Turn("planes", "shardstore", "tiny", contenders.Place(str(tmp_path)), "run")
    with pytest.raises(Exception, match="volume"):
        worker.take(turn)


def test_the_leanest_loop_reads_what_zarr_reads(modules: Any, tmp_path: Path) -> None:
    datasets, contenders, leanest = modules("datasets"), modules("contenders"), modules("leanest")
    form = datasets.SCALES["tiny"].volume
    datasets.make(tmp_path, "a", form)
    address = contenders.Address(contenders.Place(str(tmp_path)), "a")
    lean = leanest.Leanest("bytes and codecs", codecs=True, over=("local",)).open(address)
    everything = datasets.contents(form)
    for box in [(slice(0, 32), slice(5, 6), slice(0, 64)), (slice(3, 20), slice(15, 49), slice(31, 33))]:
        assert (lean.read(box) == everything[box]).all()
