"""The page of a report: well-formed, self-contained, always the same, and nothing of a store can become more than text in it."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from matplotlib.image import imread

import shardstore
from shardstore.apps.reports.facts import Facts, Preview
from shardstore.apps.reports.page import MOST_PICTURE_NBYTES, Serving, encode_png, page, picture_of, policy
from tests.documents import array_v3

HOSTILE = [
    "<script>alert(1)</script>",
    '"onmouseover="alert(1)',
    "'><img src=x onerror=alert(1)>",
    "</script><b>",
    "\u202eltr",
    "a&amp;b",
    "x" * 900,
]
VOID = {"meta", "img", "input", "br", "link", "option"}


class Parsed(HTMLParser):
    """A page, whose elements have to be nested."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        assert len({name for name, _ in attrs}) == len(attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))

    def text_of(self, tag: str) -> str:
        return "".join(data for inside, data in self.texts if inside == tag)

    def all_of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("page") / "data.zarr"
    store = shardstore.open(place, chunks_per_shard={"image": (2, 2), "*": None})
    group = zarr.create_group(store)
    array = group.create_array("image", shape=(60, 80), chunks=(4, 4), dtype="u2", dimension_names=("y", "x"))
    array[:30, :50] = 7
    group.create_array("deep/time", data=np.arange(5))
    return place


@pytest.fixture(scope="module")
def facts(place: Path) -> Facts:
    return shardstore.report(place, preview=True).facts


def test_a_page_is_well_formed_and_needs_nothing_else(facts: Facts) -> None:
    text = page(facts)
    parsed = Parsed(text)
    assert parsed.text_of("h1") == facts.url
    policies = [meta["content"] for meta in parsed.all_of("meta") if meta.get("http-equiv") == "Content-Security-Policy"]
    assert policies == [policy()]
    assert "default-src 'none'" in policy()
    script = [data for tag, data in parsed.texts if tag == "script"][-1]
    assert f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" in policy()
    for tag, attributes in parsed.elements:
        for name in ("src", "href", "srcset", "action", "data"):
            value = attributes.get(name)
            assert value is None or value.startswith("data:image/png;base64,"), (tag, value)
        assert not any(name.startswith("on") for name in attributes)
    assert "url(" not in text
    assert "@import" not in text


def test_all_numbers_are_in_the_page_as_json(facts: Facts) -> None:
    text = page(facts)
    (embedded,) = re.findall(r'<script type="application/json" id="facts">(.*?)</script>', text, re.DOTALL)
    assert json.loads(embedded) == json.loads(facts.json())
    assert "<" not in page(replace(facts, url="<!--<script>")).partition('id="facts">')[2].partition("</script>")[0]


def test_the_same_facts_make_the_same_page(facts: Facts, place: Path) -> None:
    again = shardstore.report(place, preview=True).facts
    assert page(replace(again, at=facts.at)) == page(facts)


def test_pictures_are_the_densities(facts: Facts) -> None:
    (image,) = (array for array in facts.arrays if array.path == "image")
    (density,) = image.pictures
    url = picture_of(density)
    assert url is not None
    assert url in page(facts)
    drawn = imread(io.BytesIO(base64.b64decode(url.partition(",")[2])))[:, :, :3]
    shares = density.cells
    np.testing.assert_array_equal((drawn == drawn[-1, -1]).all(axis=2), shares == 0)  # the last chunk does not exist
    brightness = drawn.sum(axis=2)
    assert brightness[shares == 1].min() > brightness[shares < 1].max()
    line = picture_of(replace(density, cells=np.linspace(0, 1, 11).reshape(1, 11)))
    assert line is not None
    shades = imread(io.BytesIO(base64.b64decode(line.partition(",")[2])))[0].sum(axis=1)
    assert (np.diff(shades) > 0).all()


def test_histograms_have_a_bar_for_each_bin_and_say_how_many(facts: Facts) -> None:
    parsed = Parsed(page(facts))
    wanted = [one for array in facts.arrays for one in (*array.object_sizes, *(array.chunk_sizes if array.surveyed.is_sharded else ()))]
    bars = parsed.all_of("rect")
    assert len(bars) == len(wanted)
    assert [float(bar["height"] or 0) > 0 for bar in bars] == [one.number > 0 for one in wanted]
    titles = [data for tag, data in parsed.texts if tag == "title"][1:]  # the first is that of the page
    assert [title.partition(" of ")[0] for title in titles] == [f"{one.number:,}" for one in wanted]


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (512, 7)])
def test_png_of_grey_values_and_of_a_palette(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(1)
    pixels = rng.integers(0, 256, shape, dtype=np.uint8)
    np.testing.assert_array_equal(np.rint(imread(io.BytesIO(encode_png(pixels))) * 255), pixels)
    palette = rng.integers(0, 256, (256, 3), dtype=np.uint8)
    np.testing.assert_array_equal(np.rint(imread(io.BytesIO(encode_png(pixels, palette)))[..., :3] * 255), palette[pixels])


def test_names_of_a_store_are_only_text(facts: Facts) -> None:
    image = facts.arrays[-1]
    for name in HOSTILE:
        named = replace(image.surveyed, path=name, dimension_names=(name, None), data_type=name)
        verified: dict[str, Any] = {"errors": 1, "notes": 0, "chunks": 3, "detectable": {"found": [name], "missed": [name]}}
        array = replace(image, surveyed=named, verified=verified, preview=name)
        hostile = replace(facts, url=name, survey=replace(facts.survey, arrays=(named,)), arrays=(array,))
        text = page(hostile, Serving([(f"v{name}", name)], [("zarr2", name)], name, name))
        parsed = Parsed(text)
        assert parsed.text_of("h1") == name
        assert len(parsed.all_of("script")) == 2
        assert all(set(one) <= {"src", "alt", "width"} for one in parsed.all_of("img"))
        assert not any(key.startswith("on") for _, attributes in parsed.elements for key in attributes)
        (embedded,) = re.findall(r'<script type="application/json" id="facts">(.*?)</script>', text, re.DOTALL)
        assert json.loads(embedded)["url"] == name


def test_a_page_with_many_arrays_and_pictures_stays_small(facts: Facts) -> None:
    noise = np.random.default_rng(0)
    image = facts.arrays[-1]
    surveyed = [replace(image.surveyed, path=f"group{number % 7}/array{number}") for number in range(500)]
    arrays = tuple(
        replace(image, surveyed=one, preview=Preview(noise.integers(0, 256, (512, 512), dtype=np.uint8), "[0]")) for one in surveyed
    )
    text = page(replace(facts, survey=replace(facts.survey, arrays=tuple(surveyed)), arrays=arrays))
    assert len(text.encode()) <= 10_000_000
    parsed = Parsed(text)
    shown = sum(len(one["src"] or "") for one in parsed.all_of("img"))
    assert 0.9 * MOST_PICTURE_NBYTES < shown <= MOST_PICTURE_NBYTES
    assert f"{1000 - len(parsed.all_of('img'))} pictures left out" in text


def test_a_thousand_arrays_are_counted_and_as_many_shown_as_asked(tmp_path: Path) -> None:
    group = zarr.create_group(tmp_path)
    for number in range(1000):
        (tmp_path / f"a{number}").mkdir()
        (tmp_path / f"a{number}/zarr.json").write_text(ARRAY)
    assert group is not None
    report = shardstore.report(tmp_path, most_arrays=30)
    assert (len(report.facts.survey.arrays), len(report.facts.arrays), report.facts.arrays_left_out) == (1000, 30, 970)
    assert "970 more arrays counted, and not shown" in report.html


ARRAY = json.dumps(array_v3([3], [3], chunk_key_encoding={"name": "default"}, codecs=["bytes"]))


# -- previews ------------------------------------------------------------------------------------------------------------


def preview_of(place: Path, path: str) -> Preview | str:
    (found,) = (array.preview for array in shardstore.report(place, preview=True).facts.arrays if array.path == path)
    return found


def test_a_preview_is_the_stretched_middle_of_an_array(tmp_path: Path) -> None:
    values = np.arange(5 * 30 * 20, dtype="f4").reshape(5, 30, 20)
    values[2, 0, 0] = np.nan
    zarr.create_array(tmp_path, name="a", data=values, chunks=(2, 10, 10))
    found = preview_of(tmp_path, "a")
    assert isinstance(found, Preview)
    assert found.what == "[2, 0:30, 0:20]"
    plane = values[2]
    low, high = np.nanpercentile(plane, (2, 98))
    expected = np.rint(255 * np.clip((np.nan_to_num(plane, nan=low) - low) / (high - low), 0, 1))
    np.testing.assert_array_equal(found.pixels, expected)


def test_a_preview_reads_few_chunks_and_is_small(tmp_path: Path) -> None:
    store = shardstore.open(tmp_path)
    array = zarr.create_array(store, name="a", shape=(8, 20000, 30000), chunks=(1, 512, 512), dtype="u2")
    middle = slice(9728, 10240), slice(14848, 15360)
    array[4, middle[0], middle[1]] = np.arange(512 * 512, dtype="u2").reshape(512, 512)
    found = preview_of(tmp_path, "a")
    assert isinstance(found, Preview)
    rows, columns = re.findall(r"(\d+):(\d+)", found.what)
    extents = [int(stop) - int(start) for start, stop in (rows, columns)]
    assert np.prod(extents) * 2 <= 4 * 2**20


def test_a_preview_reads_a_bounded_number_of_chunks(tmp_path: Path) -> None:
    zarr.create_array(tmp_path, name="a", shape=(2**40, 2**40), chunks=(2, 2), dtype="u1")[0, 0] = 1
    found = preview_of(tmp_path, "a")
    assert isinstance(found, Preview)
    assert found.pixels.shape == (32, 32)  # 256 chunks


def test_a_preview_of_few_large_chunks_is_made_smaller(tmp_path: Path) -> None:
    zarr.create_array(tmp_path, name="a", data=np.arange(1500 * 900, dtype="f4").reshape(1500, 900), chunks=(500, 300))
    found = preview_of(tmp_path, "a")
    assert isinstance(found, Preview)
    assert max(found.pixels.shape) <= 512
    assert found.pixels.max() == 255  # the chunk that exists is in it


@pytest.mark.parametrize(
    ("shape", "chunks", "dtype", "said"),
    [
        ((5,), (5,), "i4", ""),
        ((0, 4), (1, 4), "i4", "the array is empty"),
        ((4, 4), (4, 4), "str", "its values are not numbers"),
        ((4096, 4096), (4096, 4096), "u1", "a chunk has 16.0 MiB, decoded: more than is read for a preview"),
    ],
)
def test_arrays_without_a_preview(tmp_path: Path, shape: tuple[int, ...], chunks: tuple[int, ...], dtype: Any, said: str) -> None:
    zarr.create_array(tmp_path, name="a", shape=shape, chunks=chunks, dtype=dtype)
    assert preview_of(tmp_path, "a") == said


def test_a_constant_array_and_one_of_nan_are_black(tmp_path: Path) -> None:
    for name, value in (("flat", 5.0), ("nan", np.nan)):
        zarr.create_array(tmp_path, name=name, data=np.full((4, 4), value), chunks=(4, 4))
        found = preview_of(tmp_path, name)
        assert isinstance(found, Preview)
        assert not found.pixels.any()


def test_of_a_pyramid_the_coarsest_level_is_shown(tmp_path: Path) -> None:
    datasets = [{"path": "0"}, {"path": "1"}]
    for name, attributes in (("v4", {"multiscales": [{"datasets": datasets}]}), ("v5", {"ome": {"multiscales": [{"datasets": datasets}]}})):
        group = zarr.create_group(tmp_path, path=name, attributes=attributes)
        group.create_array("0", data=np.eye(8), chunks=(4, 4))
        group.create_array("1", data=np.eye(4), chunks=(4, 4))
        assert preview_of(tmp_path, f"{name}/0") == f"a coarser level of the same picture is {name}/1"
        assert isinstance(preview_of(tmp_path, f"{name}/1"), Preview)


def test_a_damaged_chunk_is_why_there_is_no_preview(tmp_path: Path) -> None:
    store = shardstore.open(tmp_path)
    zarr.create_array(store, name="a", data=np.arange(64).reshape(8, 8), chunks=(8, 8), dtype=None)
    (shard,) = (file for file in (tmp_path / "a/c").rglob("*") if file.is_file())
    shard.write_bytes(b"\0" * 8 + shard.read_bytes()[8:])
    found = preview_of(tmp_path, "a")
    assert isinstance(found, str)
    assert found.startswith("it cannot be read: ")
