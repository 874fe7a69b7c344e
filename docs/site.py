"""Hooks of mkdocs.yml: the README becomes the first page, and repository files that a page links to become pages.

GitHub shows `../configs/quickstart.yaml` next to the docs; a site has only what lies in docs/. So each linked text
file becomes a page "source/…" with its highlighted content, and each linked folder a page that lists its files.
"""

import json
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(?<=\]\()(?!https?://|#|mailto:)([^)#\s]+)")
LANGUAGES = {".py": "python", ".yaml": "yaml", ".toml": "toml", ".json": "json", ".cpp": "cpp", ".sbatch": "bash"}
README = "index.md"


def target_of(link: str, page: str) -> Path:
    """Return the file or folder of the repository that a link means. page: path of the page below docs/."""
    file = "README.md" if page == README else f"docs/{page}"
    if page.startswith("source/"):
        file = page.removeprefix("source/")
    return ROOT / posixpath.normpath(posixpath.join(posixpath.dirname(file), link))


def place_of(target: Path) -> str:
    """Return the path below docs/ at which the site has a file or folder."""
    if target.is_relative_to(ROOT / "docs"):
        return target.relative_to(ROOT / "docs").as_posix()
    if target == ROOT / "README.md":
        return README
    return f"source/{target.relative_to(ROOT).as_posix()}{'' if target.suffix in ('.md', '.png') else '.md'}"


def page_content(target: Path) -> str:
    """Return the page for a file or folder as Markdown."""
    title = f"# {target.relative_to(ROOT).as_posix()}\n\n"
    if target.is_dir():
        files = sorted(file for file in target.rglob("*") if file.suffix in LANGUAGES)
        return title + "\n".join(f"- `{file.relative_to(target).as_posix()}`" for file in files)
    fence = "`````"
    if target.suffix == ".ipynb":
        return notebook(json.loads(target.read_text()), fence)
    return f"{title}{fence}{LANGUAGES.get(target.suffix, 'text')}\n{target.read_text()}\n{fence}\n"


def notebook(book: dict[str, Any], fence: str) -> str:
    """Return the cells of a notebook and their output as Markdown."""
    parts = []
    for cell in book["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"{fence}python\n{source}\n{fence}")
        parts += [f"{fence}text\n{''.join(output['text']).rstrip()}\n{fence}" for output in cell.get("outputs", [])]
    return "\n\n".join(parts) + "\n"


def rewrite(text: str, page: str) -> str:
    """Return the text of a page with links to the places of their targets in the site."""

    def link(match: re.Match[str]) -> str:
        target = target_of(match[1], page)
        return posixpath.relpath(place_of(target), posixpath.dirname(page)) if target.exists() else match[1]

    return LINK.sub(link, text)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the README and everything outside docs/ that it and the pages link to."""
    files.append(File.generated(config, README, content=(ROOT / "README.md").read_text()))
    pages = [file for file in files if file.is_documentation_page()]
    known = {file.src_uri for file in files}
    for page in pages:  # the list grows in this loop: a linked README has links too
        for link in LINK.findall(page.content_string) if has_links(page.src_uri) else ():
            target = target_of(link, page.src_uri)
            place = place_of(target) if target.exists() else ""
            if place.startswith("source/") and place not in known:
                known.add(place)
                whole = target.suffix in (".md", ".png")
                source = {"abs_src_path": str(target)} if whole else {"content": page_content(target)}
                pages.append(File.generated(config, place, **source))
                files.append(pages[-1])
    return files


def has_links(page: str) -> bool:
    """Return whether a page is Markdown of this repository, not the content of another file or a picture."""
    return page.endswith(".md") and (
        not page.startswith("source/") or target_of(posixpath.basename(page), page).exists()
    )


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite a page's links."""
    return rewrite(markdown, page.file.src_uri) if has_links(page.file.src_uri) else markdown
