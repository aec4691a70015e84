"""What mkdocs does not do by itself for the site of docs/.

The navigation is the lists of ``docs/index.md``. Every module with ``__all__`` gets a page of its docstrings, every notebook a page of its
cells and outputs, as they were saved. Links to files outside of docs/ lead to the repository, and names of the package to their entries.
What was built is checked: a public name without an entry, and a page that loads anything from the network, are errors.
"""

from __future__ import annotations

import ast
import json
import posixpath
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
PACKAGE = "shardstore"
STYLE = "assets/wide.css"

_SECTION = re.compile(r"^## (.+)\n", re.MULTILINE)
_LISTED = re.compile(r"^- \[([^]]+)\]\(([^)#]+)\)", re.MULTILINE)
_LINK = re.compile(r"(?<=\]\()(?![a-z+]+:)([^)#\s]+)")
_NAME = re.compile(rf"(?<![`\[])`({PACKAGE}(?:\.\w+)+)`(?![`\]])")
_LOADS = re.compile(
    r"""<(?:script|link|img|iframe|source|object|embed)\b(?![^>]*\brel=["']?canonical)[^>]*?\b(?:src|href|data)=["']?((?:https?:)?//[^"'\s>]*)"""
    r"""|(?:@import\s*["']?|\burl\(\s*["']?)((?:https?:)?//[^"')\s]*)"""
    r"""|(data-md-component=["']?source\b|class=["']?mermaid\b)"""  # the theme asks the repository's host, and loads a script, for these
)


# -- what the files say ------------------------------------------------------------------------------------------------


def navigation(index: str) -> list[dict[str, Any]]:
    """The pages by section, as the lists below the headings of ``index`` have them."""
    _, *parts = _SECTION.split(index)
    found: list[dict[str, Any]] = [{PACKAGE: "index.md"}]
    for title, text in zip(parts[::2], parts[1::2], strict=True):
        if listed := [{name: page_of(path)} for name, path in _LISTED.findall(text) if not path.startswith("../")]:
            found.append({title: listed})
    return found


def page_of(path: str) -> str:
    """The page that shows a file of docs/: a notebook's has its name."""
    return re.sub(r"\.ipynb$", ".md", path)


def page_of_module(module: str) -> str:
    return f"reference/modules/{module}.md"


def with_links(markdown: str, page: str, repository: str) -> str:
    """``markdown`` of a page, with links to the repository for files outside of docs/, and to the entries of names of the package."""

    def lead(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link[1]))
        return page_of(link[1]) if path.startswith("docs/") else f"{repository}/blob/main/{path}"

    return _NAME.sub(r"<autoref optional identifier='\1'><code>\1</code></autoref>", _LINK.sub(lead, markdown))


def with_first_screen(index: str, readme: str) -> str:
    """The first page: what the README says before its first section, and the lists of the index."""
    screen = re.sub(r"(?<=\]\()(?![a-z+]+:|#)", "../", readme.partition("\n## ")[0]).replace("](../docs/", "](")
    return f"{screen}\n## {index.partition(chr(10) + '## ')[2]}"


def public_names() -> Iterator[tuple[str, list[str]]]:
    """Yield each module of the package with ``__all__``, and the names in it."""
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            match node:
                case ast.Assign(targets=[ast.Name(id="__all__")], value=value):
                    module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
                    yield module, ast.literal_eval(value)


def notebook_as_markdown(text: str) -> str:
    """The cells of a notebook with their outputs; pictures are part of the page."""
    parts: list[str] = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
        elif cell["cell_type"] == "code":
            parts += [fenced(source, "python"), *map(shown, cell["outputs"])]
    return "\n\n".join(parts) + "\n"


def shown(output: dict[str, Any]) -> str:
    """An output of a cell, in the richest of the forms that it was saved in."""
    if output["output_type"] == "stream":
        return fenced("".join(output["text"]), "text")
    forms = {kind: "".join(form) for kind, form in output["data"].items() if isinstance(form, str | list)}
    for kind in ("text/html", "image/svg+xml"):
        if kind in forms:
            return f'<div class="output">\n{forms[kind]}\n</div>'
    if "image/png" in forms:
        return f'<img alt="" src="data:image/png;base64,{forms["image/png"].strip()}">'
    return fenced(forms.get("text/plain", ""), "text")


def fenced(text: str, language: str) -> str:
    return f"`````{language}\n{text.rstrip()}\n`````"


def loaded_from_elsewhere(html: str) -> list[str]:
    """What a page or a stylesheet makes a browser request from another machine."""
    return ["".join(found) for found in _LOADS.findall(html)]


# -- what mkdocs asks --------------------------------------------------------------------------------------------------


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    config.site_url = urls["Documentation"]
    config.extra["repository"] = urls["Repository"]
    config.extra_css.append(STYLE)
    docs = Path(config.docs_dir)
    config.nav = navigation((docs / "index.md").read_text())
    by_title = {title: pages for section in config.nav for title, pages in section.items()}
    by_title["Reference"].append({"Modules": [{module: page_of_module(module)} for module, _ in public_names() if module != PACKAGE]})
    by_title["Design"].append({"Decisions": sorted(f"design/decisions/{path.name}" for path in docs.glob("design/decisions/*.md"))})
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    from mkdocs.structure.files import File

    files.append(File.generated(config, STYLE, content=".md-grid { max-width: 76rem; }\n"))  # for lines of code
    for module, _ in public_names():
        if module != PACKAGE:
            inherited = str(module != f"{PACKAGE}.errors").lower()  # every error would repeat what its bases have
            content = f"::: {module}\n    options: {{heading_level: 1, inherited_members: {inherited}}}\n"
            files.append(File.generated(config, page_of_module(module), content=content))
    for notebook in [file for file in files if file.src_uri.endswith(".ipynb")]:
        files.append(File.generated(config, page_of(notebook.src_uri), content=notebook_as_markdown(notebook.content_string)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    if page.is_homepage:
        page.meta["hide"] = ["navigation"]
        markdown = with_first_screen(markdown, (ROOT / "README.md").read_text())
    return with_links(markdown, page.file.src_uri, config.extra["repository"])


def on_post_build(config: MkDocsConfig) -> None:
    from mkdocs.exceptions import PluginError

    entries = config.plugins["mkdocstrings"].handlers.inventory  # type: ignore[attr-defined]
    public = [f"{module}.{name}" for module, names in public_names() for name in names]
    wrong = [f"no page has an entry for {name}" for name in public if name not in entries]
    site = Path(config.site_dir)
    for path in sorted([*site.rglob("*.html"), *site.rglob("*.css")]):
        wrong += [f"{path.relative_to(site)} loads {what} from the network" for what in loaded_from_elsewhere(path.read_text())]
    if wrong:
        raise PluginError("\n".join(wrong))
