"""A real browser: it draws a slice through the server, and shows the report. ``make browser-test`` installs what this needs.

Chromium is that of the system (``SHARDSTORE_CHROMIUM`` names another one), driven by Playwright; zarrita comes from npm, as the lock file
says, and neuroglancer from its package for Python. Where one of them is missing the tests are left out, unless ``SHARDSTORE_BROWSER`` is
set.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest

import shardstore
from shardstore.apps.server import Serving, serve
from tests.apps.server.conftest import DATA, make_store

HERE = Path(__file__).parent
CHROMIUM = shutil.which(os.environ.get("SHARDSTORE_CHROMIUM", "chromium"))
NPM = shutil.which("npm")

pytestmark = [pytest.mark.timeout(180)]


def need(there: bool, what: str) -> None:
    if not there and "SHARDSTORE_BROWSER" in os.environ:
        pytest.fail(f"{what} is not installed")
    if not there:
        pytest.skip(f"{what} is not installed: make browser-test installs it")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    need(CHROMIUM is not None, "Chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        need(False, "playwright")
        raise
    with sync_playwright() as playwright:
        without_gpu = ["--use-angle=swiftshader", "--enable-unsafe-swiftshader"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", *without_gpu])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("browser") / "data.zarr")


@pytest.fixture(scope="module")
def viewer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a page on another origin, as viewers are."""
    need(NPM is not None, "npm")
    place = tmp_path_factory.mktemp("viewer")
    for name in ("package.json", "package-lock.json", "page.js", "index.html"):
        shutil.copy(HERE / name, place / name)
    subprocess.run(["npm", "ci", "--no-audit", "--no-fund", "--silent"], cwd=place, check=True, timeout=120)
    bundle = ["node_modules/.bin/esbuild", "page.js", "--bundle", "--format=esm", "--outfile=page.bundle.js", "--log-level=warning"]
    subprocess.run(bundle, cwd=place, check=True, timeout=60)

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(place))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


class Page:
    """A page of the browser, and what it had to say on its console."""

    def __init__(self, browser: Any, **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.said: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("requestfailed", lambda request: self.said.append(f"{request.url}: {request.failure}"))

    def __enter__(self) -> Page:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()


# -- a slice -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("view", "kind"), [("zarr3", "v3"), ("zarr2", "v2"), ("zarr3", "auto"), ("zarr2", "auto"), ("stored", "v3")])
@pytest.mark.parametrize("path", ["ct", "gz"])
def test_the_canvas_equals_numpy(chromium: Any, viewer: str, store: Path, view: str, kind: str, path: str) -> None:
    at = 5
    with serve(store, port=0, cors=[viewer]) as serving, Page(chromium) as shown:
        shown.page.goto(f"{viewer}/?url={quote(serving.url + view)}&path={path}&format={kind}&at={at}")
        done = shown.page.evaluate("window.done")
        assert done == {"shape": [64, 64], "dtype": "uint16"}, done
        pixels = shown.page.evaluate(
            "() => { const c = document.querySelector('canvas');"
            " return [...c.getContext('2d').getImageData(0, 0, c.width, c.height).data]; }"
        )
    drawn = np.array(pixels, dtype=np.uint16).reshape(64, 64, 4)
    values = drawn[..., 0] | drawn[..., 1] << 8
    expected = DATA[:, :, at].copy()
    if path == "ct":
        expected[48:] = 0  # never written
    np.testing.assert_array_equal(values, expected)


def test_a_page_of_an_origin_that_is_not_named_reads_nothing(chromium: Any, viewer: str, store: Path) -> None:
    with serve(store, port=0, cors=["https://viewer.example"]) as serving, Page(chromium) as shown:
        shown.page.goto(f"{viewer}/?url={quote(serving.url + 'zarr3')}&path=ct&format=v3&at=0")
        assert "error" in shown.page.evaluate("window.done")


# -- a viewer --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("view", ["zarr3", "stored"])
def test_neuroglancer_draws_the_volume_of_the_page(chromium: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, view: str) -> None:
    try:
        import neuroglancer
    except ModuleNotFoundError:
        need(False, "neuroglancer")
        raise
    monkeypatch.chdir(tmp_path)
    page = (HERE.parents[3] / "docs/howto/ome-zarr.md").read_text()
    exec(page.partition("```python\n")[2].partition("```")[0], {"__name__": "__main__"})
    shardstore.pack("waves.ome.zarr", "packed.ome.zarr", chunks_per_shard=(4, 4, 4))
    viewer = neuroglancer.Viewer()
    address = viewer.get_viewer_url()
    origin = "/".join(address.split("/")[:3])
    with serve("packed.ome.zarr", port=0, cors=[origin]) as serving, Page(chromium) as shown:
        with viewer.txn() as state:
            state.layers["waves"] = neuroglancer.ImageLayer(source=f"{serving.url}{view}/|zarr3:")
        shown.page.goto(address)
        shown.page.wait_for_function("document.body.innerText.includes('waves')")
        for _ in range(30):
            shown.page.wait_for_timeout(1000)
            if colours(shown.page.screenshot(), tmp_path) > 150:  # it has few before there are voxels
                return
    pytest.fail("no voxels were drawn")


# -- the report ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def report(store: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("report") / "report.html"
    shardstore.report(store, preview=True, verified=shardstore.verify(store, deep=True)).write(file)
    return file.as_uri()


def colours(picture: bytes, tmp_path: Path) -> int:
    """How many different colours a screenshot has."""
    from matplotlib.image import imread

    (tmp_path / "shot.png").write_bytes(picture)
    pixels = (imread(tmp_path / "shot.png")[..., :3] * 255).astype(np.uint8)
    return len(np.unique(pixels.reshape(-1, 3), axis=0))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_report_says_nothing_on_the_console_and_is_not_blank(chromium: Any, report: str, tmp_path: Path, scheme: str) -> None:
    with Page(chromium, color_scheme=scheme) as shown:
        shown.page.goto(report)
        assert shown.page.locator(".card").count() == 3
        assert colours(shown.page.screenshot(), tmp_path) > 50
        background = shown.page.evaluate("getComputedStyle(document.body).color")
        assert (background == "rgb(255, 255, 255)") == (scheme == "dark")  # the colour of the text
        assert shown.said == []


def test_pictures_zoom_and_say_which_chunk_is_pointed_at(chromium: Any, report: str) -> None:
    with Page(chromium) as shown:
        shown.page.goto(report)
        figure = shown.page.locator(".picture").first
        picture, frame = figure.locator("img"), figure.locator(".frame")
        width = picture.bounding_box()["width"]
        figure.locator("button").first.click()
        assert picture.bounding_box()["width"] == pytest.approx(2 * width)
        frame.hover()
        shown.page.keyboard.down("Control")
        shown.page.mouse.wheel(0, 100)
        shown.page.keyboard.up("Control")
        shown.page.wait_for_timeout(100)
        assert picture.bounding_box()["width"] == pytest.approx(2 * width * 0.8, rel=0.01)
        picture.hover(position={"x": 1, "y": 1})
        assert figure.locator("output").text_content() == "axis 0: chunk 0, axis 1: chunk 0"
        assert shown.said == []


def test_arrays_are_filtered_and_sorted(chromium: Any, report: str) -> None:
    with Page(chromium) as shown:
        shown.page.goto(report)
        shown.page.fill("#filter", "GZ")
        assert shown.page.locator(".card:visible .name").all_text_contents() == ["gz"]
        shown.page.fill("#filter", "")
        shown.page.select_option("#sort", "nbytes")
        of_root = shown.page.locator(".group").first.locator(".card")
        sizes = [int(card.get_attribute("data-nbytes")) for card in of_root.all()]
        assert sizes == sorted(sizes, reverse=True)
        assert shown.said == []


def test_without_scripts_everything_is_there(chromium: Any, report: str) -> None:
    with Page(chromium, java_script_enabled=False) as shown:
        shown.page.goto(report)
        assert shown.page.locator(".card").count() == 3
        assert shown.page.locator(".picture img").first.is_visible()
        assert not shown.page.locator("#filter").is_visible()
        shown.page.locator(".card > summary").first.click()
        assert not shown.page.locator(".card .body").first.is_visible()


def test_the_report_prints(chromium: Any, report: str) -> None:
    with Page(chromium) as shown:
        shown.page.goto(report)
        assert len(shown.page.pdf()) > 10_000
        assert shown.said == []


def test_closed_cards_are_printed_too(chromium: Any, report: str) -> None:
    with Page(chromium, java_script_enabled=False) as shown:
        shown.page.goto(report)
        body = shown.page.locator(".card .body").first
        shown.page.locator(".card > summary").first.click()
        assert not body.is_visible()
        shown.page.emulate_media(media="print")
        assert body.bounding_box()["height"] > 100


def test_the_front_page_of_a_server(chromium: Any, store: Path, tmp_path: Path) -> None:
    def opened(serving: Serving) -> None:
        with Page(chromium) as shown:
            shown.page.goto(serving.url)
            assert colours(shown.page.screenshot(), tmp_path) > 50
            shown.page.click("text=Look again")
            assert shown.page.url == serving.url
            assert shown.said == []
            shown.page.click("text=/zarr3/")
            assert shown.page.locator("text=ct/").count() >= 1
            assert [said for said in shown.said if "favicon" not in said] == []

    with serve(store, port=0) as serving:
        opened(serving)
