"""mkdocs hooks: files of the repository that pages link to become pages of the site.

An entry `FOLDER/*` of the navigation stands for all pages of a folder without an entry of their own. The
index of a folder ends with links to the pages that it does not link itself.
"""

import json
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
# Pages at the top of the site.
PROJECT_PAGES = ("CHANGELOG.md", "CONTRIBUTING.md")
INDICES = ("models/index.md", "results/index.md")
LANGUAGES = {".py": "python", ".yaml": "yaml", ".toml": "toml", ".cff": "yaml", ".csv": "text"}
_LINK = re.compile(r"\]\((?![a-z]+:)([^)\s#]+)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Expands the entries of the navigation that name whole folders."""
    named = set(_list_pages(config.nav))
    config.nav = _expand(config.nav, named)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the project pages, and a page for each file of the repository that some page links to."""
    for name in PROJECT_PAGES:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    for path in sorted({path for file in files.documentation_pages() for path in _find_sources(file)}):
        files.append(File.generated(config, _place_on_site(path), content=_show_source(path)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Redirects links to files of the repository to their pages on the site."""
    uri = page.file.src_uri
    if uri.startswith("source/"):
        return markdown
    here = _place_in_repository(uri)

    def replace(link: re.Match[str]) -> str:
        target = _find_target(here, link[1])
        if not (ROOT / target).exists() or (target.startswith("docs/") and uri not in PROJECT_PAGES):
            return link[0]  # inside the site already, or a broken link
        return f"]({posixpath.relpath(_place_on_site(target), posixpath.dirname(uri) or '.')}"

    return _LINK.sub(replace, markdown) + (_list_others(uri, markdown) if uri in INDICES else "")


def _list_pages(entry: Any) -> Iterator[str]:
    """The pages that an entry of the navigation names, at any depth."""
    if isinstance(entry, str):
        yield entry
    elif entry:
        for part in entry.values() if isinstance(entry, dict) else entry:
            yield from _list_pages(part)


def _expand(entry: Any, named: set[str]) -> Any:
    """An entry of the navigation with `FOLDER/*` replaced by the pages of the folder that are not named."""
    if isinstance(entry, dict):
        return {title: _expand(part, named) for title, part in entry.items()}
    if not isinstance(entry, list):
        return entry
    expanded: list[Any] = []
    for part in entry:
        if isinstance(part, str) and part.endswith("/*"):
            pages = (
                path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").glob(f"{part}.md")
            )
            expanded += sorted(set(pages) - named)
        else:
            expanded.append(_expand(part, named))
    return expanded


def _list_others(uri: str, markdown: str) -> str:
    """Links to the pages of a folder that its index does not link itself."""
    names = {path.stem for path in (ROOT / "docs" / uri).parent.glob("*.md")} - {"index"}
    others = sorted(name for name in names if f"]({name}.md)" not in markdown)
    return "".join(["\n\nFurther:\n\n" if others else "", *(f"- [{name}]({name}.md)\n" for name in others)])


def _find_sources(file: File) -> set[str]:
    """The files outside docs/ that a page links to, relative to the repository."""
    here = _place_in_repository(file.src_uri)
    targets = {_find_target(here, link) for link in _LINK.findall(file.content_string)}
    outside = {
        target for target in targets if not target.startswith(("docs/", "..")) and (ROOT / target).is_file()
    }
    return outside - set(PROJECT_PAGES)


def _find_target(here: str, link: str) -> str:
    return posixpath.normpath(posixpath.join(posixpath.dirname(here), link))


def _place_in_repository(uri: str) -> str:
    return uri if uri in PROJECT_PAGES else f"docs/{uri}"


def _place_on_site(path: str) -> str:
    if path in PROJECT_PAGES:
        return path
    return path.removeprefix("docs/") if path.startswith("docs/") else f"source/{path}.md"


def _show_source(path: str) -> str:
    text = (ROOT / path).read_text(encoding="utf-8")
    if path.endswith(".ipynb"):
        cells = json.loads(text)["cells"]
        return "\n\n".join(_show_cell(cell["cell_type"], "".join(cell["source"])) for cell in cells)
    language = LANGUAGES.get(posixpath.splitext(path)[1], "text")
    # Search should find documentation, not source code.
    return f"---\nsearch:\n  exclude: true\n---\n\n# `{path}`\n\n{_fence(text, language)}\n"


def _show_cell(kind: str, text: str) -> str:
    return _fence(text, "python") if kind == "code" else text


def _fence(text: str, language: str) -> str:
    """A fenced block; four backticks, since the text may contain three."""
    return f"````{language}\n{text}\n````"
