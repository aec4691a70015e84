"""What the site of docs/ is made of beyond its pages (``.ci/site/pages.py``); ``make docs`` builds all of it and checks the rest."""

from __future__ import annotations

import json
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

import shardstore

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def pages() -> Any:
    spec = spec_from_file_location("pages", ROOT / ".ci/site/pages.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_navigation_is_the_lists_of_the_index(pages: Any) -> None:
    index = """# shardstore

- [of no section](howto/a.md)

## Start

- [README](../README.md): elsewhere.
- [First](start/first.md): it has a [link](start/other.md).

## How-to

- [A notebook](notebooks/a.ipynb): and
  more.

## Empty
"""
    assert pages.navigation(index) == [
        {"shardstore": "index.md"},
        {"Start": [{"First": "start/first.md"}]},
        {"How-to": [{"A notebook": "notebooks/a.md"}]},
    ]


def test_every_page_is_in_the_navigation_once(pages: Any) -> None:
    docs = ROOT / "docs"
    sections = pages.navigation((docs / "index.md").read_text())[1:]
    listed = [path for section in sections for entries in section.values() for entry in entries for path in entry.values()]
    found = [pages.page_of(str(path.relative_to(docs))) for kind in ("*.md", "*.ipynb") for path in docs.rglob(kind)]
    assert sorted(listed) == sorted(path for path in found if path != "index.md" and not path.startswith("design/decisions/"))


def test_the_first_page_is_the_first_screen_of_the_readme_and_the_lists(pages: Any) -> None:
    readme = "# shardstore\n\n[a](docs/howto/a.md) [b](LICENSE) [c](https://host/)\n\n## More\n\nText.\n"
    index = "# shardstore\n\nIn short.\n\n## Start\n\n- [a](start/a.md)\n\n## How-to\n"
    shown = "# shardstore\n\n[a](howto/a.md) [b](../LICENSE) [c](https://host/)\n\n## Start\n\n- [a](start/a.md)\n\n## How-to\n"
    assert pages.with_first_screen(index, readme) == shown


@pytest.mark.parametrize(
    ("markdown", "shown"),
    [
        ("[x](../../examples/a.py)", "[x](https://host/blob/main/examples/a.py)"),
        ("[x](../../README.md#use-it)", "[x](https://host/blob/main/README.md#use-it)"),
        ("[x](other.md#part)", "[x](other.md#part)"),
        ("[x](../notebooks/a.ipynb)", "[x](../notebooks/a.md)"),
        ("[x](https://elsewhere/a.ipynb)", "[x](https://elsewhere/a.ipynb)"),
        ("`shardstore.a.B`", "<autoref optional identifier='shardstore.a.B'><code>shardstore.a.B</code></autoref>"),
        ("`shardstore.open(…)`", "`shardstore.open(…)`"),
        ("[`shardstore.open`](a.md)", "[`shardstore.open`](a.md)"),
        ("``shardstore.open``", "``shardstore.open``"),
    ],
)
def test_links_and_names_lead_to_what_the_site_has(pages: Any, markdown: str, shown: str) -> None:
    assert pages.with_links(markdown, "howto/page.md", "https://host") == shown


@pytest.mark.parametrize(
    ("html", "found"),
    [
        ('<script src="https://cdn/a.js"></script>', ["https://cdn/a.js"]),
        ("<script async src='//cdn/a.js'>", ["//cdn/a.js"]),
        ('<link rel="stylesheet"\nhref="https://fonts/a.css">', ["https://fonts/a.css"]),
        ('<img alt="" src=http://host/a.png>', ["http://host/a.png"]),
        ('@import "https://host/a.css";', ["https://host/a.css"]),
        ("src: url(https://host/a.woff)", ["https://host/a.woff"]),
        ('<div class="mermaid">', ['class="mermaid']),
        ('<link rel="canonical" href="https://site/page.html"><a href="https://site/">x</a>', []),
        ('<script src="../a.js"></script><img src="data:image/png;base64,//8=">', []),
        ("a{background:url(data:image/svg+xml;charset=utf-8,x)}", []),
    ],
)
def test_what_a_page_loads_from_the_network_is_found(pages: Any, html: str, found: list[str]) -> None:
    assert pages.loaded_from_elsewhere(html) == found


def test_every_module_with_public_names_is_found(pages: Any) -> None:
    found = dict(pages.public_names())
    assert found["shardstore"] == shardstore.__all__
    assert {"shardstore.errors", "shardstore.references", "shardstore.snapshots", "shardstore.apps.server"} <= found.keys()


def test_a_notebook_is_shown_as_it_was_saved(pages: Any) -> None:
    outputs = [
        {"output_type": "stream", "name": "stdout", "text": ["1\n", "2\n"]},
        {"output_type": "execute_result", "data": {"text/plain": ["<Store>"], "text/html": ["<b>store</b>"]}},
        {"output_type": "display_data", "data": {"text/plain": ["<Figure>"], "image/png": "iVBO\n"}},
        {"output_type": "execute_result", "data": {"text/plain": ["3"], "application/json": {"a": 3}}},
    ]
    cells = [
        {"cell_type": "markdown", "source": ["# Title\n", "\n", "Text."]},
        {"cell_type": "code", "source": ["print(1)\n", "x"], "outputs": outputs},
        {"cell_type": "raw", "source": ["left out"]},
    ]
    assert (
        pages.notebook_as_markdown(json.dumps({"cells": cells}))
        == """# Title

Text.

`````python
print(1)
x
`````

`````text
1
2
`````

<div class="output">
<b>store</b>
</div>

<img alt="" src="data:image/png;base64,iVBO">

`````text
3
`````
"""
    )
