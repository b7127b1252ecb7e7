"""Hooks of MkDocs for `make docs`: the navigation, the reference, pages of linked files outside docs/, and llms.txt.

The documents are written for GitHub, where their links lead to files of the repository. Here each linked file outside
docs/ is a page of the folder ``project``, each notebook is a page, and each link is rewritten.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page
from nbconvert import MarkdownExporter
from traitlets.config import Config

import headrace

ROOT = Path(__file__).parent.parent
_LINK = re.compile(r"\]\(([^)#\s]*)((?:#[^)\s]*)?)\)")
_FENCE = re.compile(r"^( *)(```+|~~~+)")
_ITEM = re.compile(r"^( *)([-*]|\d+\.) +(?=\S)")
# The pages of the reference, with the public names of headrace on each.
_REFERENCE = {
    "Stores": ["open", "restore", "Store"],
    "Tables": ["Table", "checksum_table", "TableChecksum", "diff_tables", "TableDiff"],
    "Tunnels": ["Tunnel", "TunnelWorker", "ChangeBatch", "mirror_worker"],
    "Queues": ["Queue", "Consumer", "Producer"],
    "Spark": ["session", "checkpoint", "write_stream", "Output", "follow", "mirror", "merge", "LagListener", "lag_of"],
    "Streaming SQL": ["sql", "StreamingSql"],
    # `HeadraceError` with the errors below it.
    "Errors": sorted(
        (name for name in headrace.__all__ if name.endswith("Error")), key=lambda name: name != "HeadraceError"
    ),
}
# Classes that `headrace.spark.data_sources` makes, which have no docstrings of their own.
_DATA_SOURCES = ["HeadraceDataSource", "TablestoreDataSource", "YtDataSource"]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made here, and set the navigation."""
    for path in sorted(_linked_outside()):
        _add(files, config, _site_path(path), _page_of(path))
    for title, text in _reference_pages().items():
        _add(files, config, _reference_path(title), text)
    for notebook in sorted((ROOT / "docs").glob("*.ipynb")):
        _add_notebook(files, config, notebook)
    config.nav = _navigation()
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return a page with links of the site, and with lists as Python-Markdown reads them."""
    here = page.file.src_uri
    return _outside_fences(_lists_for_python_markdown(markdown), lambda line: _LINK.sub(_rewriter(here), line))


def on_post_build(config: MkDocsConfig) -> None:
    """Write llms.txt, an index for language models (llmstxt.org), and llms-full.txt, the pages of docs/."""
    index, pages = _index_for_models(str(config.site_name), str(config.site_description))
    site = Path(config.site_dir)
    missing = [link for link, _ in _LINK.findall(index) if not (site / link).is_file()]
    if missing:
        raise PluginError(f"llms.txt links to pages that the site does not have: {missing}")
    (site / "llms.txt").write_text(index)
    texts = (f"<!-- {page} -->\n{(ROOT / page).read_text()}" for page in pages)
    (site / "llms-full.txt").write_text("\n".join(texts))


def _add(files: Files, config: MkDocsConfig, path: str, text: str) -> None:
    made = File.generated(config, path, content=text)
    made.inclusion = InclusionLevel.NOT_IN_NAV
    files.append(made)


def _add_notebook(files: Files, config: MkDocsConfig, notebook: Path) -> None:
    """Add the page of a notebook with its kept outputs, and its pictures."""
    # Texts instead of HTML, which would bring its own styles.
    settings = Config({"NbConvertBase": {"display_data_priority": ["image/png", "text/plain"]}})
    text, resources = MarkdownExporter(config=settings).from_filename(str(notebook))
    _add(files, config, _site_path(f"docs/{notebook.name}"), text)
    for name, picture in resources["outputs"].items():
        files.append(File.generated(config, name, content=picture))


# -- paths -------------------------------------------------------------------------------------------------


def _site_path(path: str) -> str:
    """Return the path of a file of the repository in the site."""
    folder, name = ("", path[5:]) if path.startswith("docs/") else ("project/", path)
    return folder + (name if name.endswith(".md") else f"{name}.md")


def _repository_path(site_path: str) -> str:
    return site_path.removeprefix("project/") if site_path.startswith("project/") else f"docs/{site_path}"


def _target(here: str, link: str) -> str | None:
    """Return the file of the repository to which a link of a file leads; None for other links."""
    if not link or "://" in link or link.startswith("mailto:"):
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(here), link))
    if (ROOT / path).is_dir():
        path = f"{path}/README.md"
    return path if (ROOT / path).is_file() else None


def _rewriter(site_path: str) -> Callable[[re.Match[str]], str]:
    """Return the replacement of a link on a page. A link that leads nowhere stays, and MkDocs warns."""

    def replaced(link: re.Match[str]) -> str:
        target = _target(_repository_path(site_path), link[1])
        # The site has pictures and data of docs/ as they are.
        if target is None or (target.startswith("docs/") and not target.endswith((".md", ".ipynb"))):
            return link[0]
        return f"]({posixpath.relpath(_site_path(target), posixpath.dirname(site_path) or '.')}{link[2]})"

    return replaced


def _linked_outside() -> set[str]:
    """Return the files outside docs/ to which documents link, also through each other."""
    found: set[str] = set()
    unread = [f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")]
    while unread:
        here = unread.pop()
        for link, _ in _LINK.findall((ROOT / here).read_text()):
            target = _target(here, link)
            if target and not target.startswith("docs/") and target not in found:
                found.add(target)
                if target.endswith(".md"):
                    unread.append(target)
    return found


# -- pages -------------------------------------------------------------------------------------------------


def _page_of(path: str) -> str:
    text = (ROOT / path).read_text()
    if path.endswith(".md"):
        return text
    language = {"py": "python", "yml": "yaml"}.get(path.rpartition(".")[2], path.rpartition(".")[2])
    return f"# {path}\n\n~~~~{language}\n{text}\n~~~~\n"


def _reference_path(title: str) -> str:
    return f"reference/{title.lower().replace(' ', '-')}.md"


def _reference_pages() -> dict[str, str]:
    named = [name for names in _REFERENCE.values() for name in names] + _DATA_SOURCES
    if sorted(named) != sorted(headrace.__all__):
        raise PluginError(f"tools/docs_site.py names other names than headrace: {set(named) ^ set(headrace.__all__)}")
    pages = {
        title: f"# {title}\n\n" + "".join(f"::: headrace.{name}\n\n" for name in names)
        for title, names in _REFERENCE.items()
    }
    classes = ", ".join(f"`headrace.{name}`" for name in _DATA_SOURCES)
    pages["Spark"] += (
        f"## Data sources\n\n{classes} are classes for `spark.dataSource.register`. Spark also finds them by the\n"
        "names of the formats: `headrace`, `tablestore`, `yt`. Their options are in [Options](../options.md).\n"
    )
    return pages


# -- navigation --------------------------------------------------------------------------------------------


def _navigation() -> list[Any]:
    """Return the tables of docs/README.md as sections. The reference from docstrings is the last."""
    sections: dict[str, list[Any]] = {}
    for line in (ROOT / "docs" / "README.md").read_text().splitlines():
        cell = line.split("|")[1].strip() if line.startswith("|") else ""
        if cell.startswith("**"):
            sections[cell.strip("*")] = []
        # A description can name further pages of its subject.
        for title, link in re.findall(r"\[([^]]+)\]\(([^)]+)\)", line if line.startswith("|") else ""):
            target = _target("docs/README.md", link)
            if target:
                sections[next(reversed(sections))].append({title: _site_path(target)})
    python = [{title: _reference_path(title)} for title in _REFERENCE]
    return [{"headrace": "README.md"}, *({name: pages} for name, pages in sections.items()), {"Python": python}]


def _index_for_models(name: str, description: str) -> tuple[str, list[str]]:
    """Return the index of docs/README.md in the form of llms.txt, and the paths of its Markdown pages in docs/."""
    lines = [f"# {name}", "", f"> {description}"]
    pages = ["docs/README.md"]
    for row in (ROOT / "docs" / "README.md").read_text().splitlines():
        cells = [cell.strip() for cell in row.split("|")[1:-1]]
        if len(cells) != 2:
            continue
        if cells[0].startswith("**"):
            lines += ["", f"## {cells[0].strip('*')}", ""]
        for title, link in re.findall(r"\[([^]]+)\]\(([^)]+)\)", row):
            target = _target("docs/README.md", link)
            if target:
                text = re.sub(r"\[([^]]+)\]\([^)]+\)", r"\1", cells[1] if link in cells[0] else "")
                lines.append(f"- [{title}]({_html(_site_path(target))})" + (f": {text}" if text else ""))
                pages += [target] if target.startswith("docs/") and target.endswith(".md") else []
    lines += ["", "## Python", ""]
    for title, names in _REFERENCE.items():
        lines.append(f"- [{title}]({_html(_reference_path(title))}): {', '.join(f'`{each}`' for each in names)}")
    return "\n".join(lines) + "\n", pages


def _html(site_path: str) -> str:
    return site_path.removesuffix(".md").replace("README", "index") + ".html"


# -- Markdown ----------------------------------------------------------------------------------------------


def _outside_fences(markdown: str, change: Callable[[str], str]) -> str:
    return "\n".join(line if fenced else change(line) for line, fenced in _with_fences(markdown))


def _with_fences(markdown: str) -> Iterator[tuple[str, bool]]:
    """Yield the lines, and whether each belongs to a fenced block."""
    fence = ""
    for line in markdown.splitlines():
        opening = _FENCE.match(line)
        yield line, bool(fence or opening)
        if not fence and opening:
            fence = opening[2]
        elif fence and line.strip() == fence:
            fence = ""


def _lists_for_python_markdown(markdown: str) -> str:
    """Return the text with a blank line before each list, and four spaces of indentation for each level.

    GitHub indents the content of an item to its first word and needs no blank line. Python-Markdown would take such a
    list for a part of the paragraph.
    """
    levels: list[int] = []
    lines: list[str] = []
    blank = True
    for line, fenced in _with_fences(markdown):
        indent = len(line) - len(line.lstrip())
        item = None if fenced else _ITEM.match(line)
        if line.strip() and (item or blank or (fenced and _FENCE.match(line))):
            while levels and indent < levels[-1]:
                levels.pop()
        if item and not levels and not blank and not _ITEM.match(lines[-1]) and not _in_list(lines):
            lines.append("")
        removed = min(indent, levels[-1] if levels else 0)
        lines.append(" " * 4 * len(levels) + line[removed:] if line.strip() else "")
        if item:
            levels.append(len(item[0]))
        blank = not line.strip()
    return "\n".join(lines)


def _in_list(lines: list[str]) -> bool:
    """Return whether the last line continues an item."""
    return bool(lines) and lines[-1].startswith("    ")
