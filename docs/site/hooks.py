"""Hooks of MkDocs: pages of the reference, links to files outside docs/, equations as MathML."""

import ast
import functools
import html
import os
import pathlib
import posixpath
import re
from collections.abc import Iterator, Sequence
from typing import Any

import latex2mathml.converter
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = pathlib.Path(__file__).resolve().parents[2]
SERVING = "keras_transformer_serving"
# The address of the repository, such as https://github.com/owner/name, to which links to its files lead.
REPOSITORY = os.environ.get("DOCS_REPOSITORY", "")
REVISION = os.environ.get("DOCS_REVISION", "main")


# --- The reference ---


def source(package: str) -> pathlib.Path:
    """Return the folder of a package by its dotted name."""
    root = ROOT / "export" / "serving" if package == SERVING else ROOT
    return root.joinpath(*package.split("."))


def tree(name: str) -> ast.Module:
    """Return the source of a package or module."""
    path = source(name)
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(path.read_text(encoding="utf-8"))


def public_names(package: str) -> list[str]:
    """Return `__all__` of a package, read without importing it."""
    for node in tree(package).body:
        match node:
            case ast.Assign([ast.Name("__all__")], value):
                return [str(name) for name in ast.literal_eval(value)]
    raise PluginError(f"{package} has no `__all__`")


def reference(package: str) -> str:
    """Return the page of a package: its docstring, and an entry for each public name."""
    lines = [f"# {package}", "", ast.get_docstring(tree(package)) or "", ""]
    names = public_names(package)
    for name in names:
        lines += [f"::: {package}.{name}", *members(f"{package}.{name}", names), ""]
    return "\n".join(lines)


def members(name: str, shown: Sequence[str]) -> list[str]:
    """Return the option that leaves out the members of a public module that have an entry of their own."""
    if not source(name).with_suffix(".py").exists():
        return []
    names = [node.name for node in tree(name).body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    others = [member for member in names if member not in shown and not member.startswith("_")]
    return ["    options:", f"      members: {others}"]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each subpackage."""
    for package in packages(config):
        files.append(
            File.generated(config, f"reference/{package.rpartition('.')[2]}.md", content=reference(package))
        )
    for name in ("site.css", "site.js"):
        path = pathlib.Path(__file__).with_name(name)
        files.append(File.generated(config, f"assets/{name}", abs_src_path=str(path)))
    return files


def packages(config: MkDocsConfig) -> Iterator[str]:
    """Yield the packages whose pages the navigation names."""
    for name in re.findall(r"'reference/(\w+)\.md'", str(config.nav)):
        yield name if name == SERVING else f"keras_transformer.{name}"


# --- Links to files of the repository ---

_LINK = re.compile(r"(!?)\[((?:[^\[\]`]|`[^`]*`|\[[^\]]*\])*)\]\((\.\.?/[^)\s]+)\)")
_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Link files outside docs/ to the repository, or show their names if its address is not known."""
    folder = posixpath.dirname(f"docs/{page.file.src_uri}")

    def replaced(match: re.Match[str]) -> str:
        image, text, target = match.groups()
        path, _, anchor = target.partition("#")
        path = posixpath.normpath(posixpath.join(folder, path))
        if path.startswith("docs/"):
            return match[0]
        if not (ROOT / path).exists():
            raise PluginError(f"{page.file.src_uri} links to {path}, which does not exist")
        if image:
            raise PluginError(f"{page.file.src_uri} shows {path}, which is not in docs/")
        if not REPOSITORY:
            return text
        kind = "tree" if (ROOT / path).is_dir() else "blob"
        return f"[{text}]({REPOSITORY}/{kind}/{REVISION}/{path}{'#' + anchor if anchor else ''})"

    parts = _FENCE.split(markdown)
    return "".join(_LINK.sub(replaced, part) if not part.startswith("```") else graph(part) for part in parts)


def graph(block: str) -> str:
    """Return a graph of Mermaid, which needs a script of another host, as a table of its arrows."""
    if not block.startswith("```mermaid"):
        return block
    arrows: dict[str, list[str]] = {}
    for importer, imported in re.findall(r"(\w+) --> (\w+)", block):
        arrows.setdefault(importer, []).append(f"`{imported}`")
    rows = [f"| `{importer}` | {', '.join(imported)} |" for importer, imported in arrows.items()]
    return "\n".join(["| from | to |", "|---|---|", *rows])


# --- Equations ---

_EQUATION = re.compile(r'<(div|span) class="arithmatex">\\([\[(])(.*?)\\[\])]</\1>', re.DOTALL)

# Commands that latex2mathml does not know, or does not know before a delimiter.
_COMMANDS = {r"\\[bB]igg?(?![a-z])": "", r"\\Vert(?![a-z])": r"\\|", r"\\arg(?![a-z])": r"\\mathrm{arg}\\,"}


def mathml(match: re.Match[str]) -> str:
    """Return an equation as MathML."""
    latex = html.unescape(match[3]).strip()
    for command, known in _COMMANDS.items():
        latex = re.sub(command, known, latex)
    display = "block" if match[2] == "[" else "inline"
    element = latex2mathml.converter.convert(latex, display=display)
    if unknown := re.search(r"\\[A-Za-z]+", html.unescape(element)):
        raise PluginError(f"an equation has the unknown command {unknown[0]}: {latex}")
    return f'<div class="equation" tabindex="0">{element}</div>' if display == "block" else element


def on_page_content(content: str, page: Page, **_: Any) -> str:
    """Render equations, plots and names, and check that the reference has every public name."""
    package = page.file.src_uri.removeprefix("reference/").removesuffix(".md")
    if f"reference/{package}.md" == page.file.src_uri:
        name = package if package == SERVING else f"keras_transformer.{package}"
        if missing := [each for each in public_names(name) if f'id="{name}.{each}"' not in content]:
            raise PluginError(f"{name} has no entry for {', '.join(missing)}")
    # A heading of a column must not be empty.
    content = content.replace("<th></th>", "<td></td>")
    content = _PLOT.sub(plot, _EQUATION.sub(mathml, content))
    return with_unbroken_words(with_links_to_reference(content, page))


# --- Plots ---

_PLOT = re.compile(r'<img alt="([^"]*)" src="(?:\.\./)*images/(benchmark_\w+\.svg)" */?>')


def plot(match: re.Match[str]) -> str:
    """Return a plot as a part of the page, so that its texts have the color of the palette."""
    svg = (ROOT / "docs" / "images" / match[2]).read_text(encoding="utf-8")
    svg = re.sub(r"<style>\nsvg.*?</style>\n|<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = svg.replace("<svg ", f'<svg role="img" aria-label="{match[1]}" ', 1)
    return f'<span class="plot" tabindex="0">{svg}</span>'


# --- Names of the package ---

# Parts of a page whose names are not linked, and a name such as `kt.layers.MultiHeadAttention` or `models.GPT`.
_UNLINKED = re.compile(r"(<(a|h[1-6]|pre|svg)\b.*?</\2>)", re.DOTALL)
_NAME = re.compile(r"<code>((?:kt\.|keras_transformer\.)?([a-z]+)\.(\w+))(\(\))?</code>")


@functools.cache
def public(package: str) -> frozenset[str]:
    """Return the public names of a subpackage; none, if there is no such subpackage."""
    name = f"keras_transformer.{package}"
    return frozenset(public_names(name)) if (source(name) / "__init__.py").exists() else frozenset()


def with_links_to_reference(content: str, page: Page) -> str:
    """Link the public names in a text to their entries."""
    root = "../" * page.file.src_uri.count("/")

    def linked(match: re.Match[str]) -> str:
        if match[3] not in public(match[2]):
            return match[0]
        anchor = f"keras_transformer.{match[2]}.{match[3]}"
        return f'<a class="name" href="{root}reference/{match[2]}.html#{anchor}">{match[0]}</a>'

    parts = _UNLINKED.split(content)
    # The pattern has two groups: a text, a part that is not linked, its element.
    return "".join(
        _NAME.sub(linked, part) if index % 3 == 0 else part
        for index, part in enumerate(parts)
        if index % 3 != 2
    )


# Browsers break lines after hyphens and slashes: short words of commands with these, such as --resume, are kept whole.
_COMMAND = re.compile(r'<div class="language-sh highlight">.*?</div>|<code>[^<]*</code>', re.DOTALL)
_WORD = re.compile(r"(?<=[\s>])(?=[\w.=]*[-/])[\w./=-]{1,28}(?=[\s<])")


def with_unbroken_words(content: str) -> str:
    """Mark the words of commands that are not broken into lines."""
    return _COMMAND.sub(
        lambda command: _WORD.sub(r'<span class="unbroken">\g<0></span>', command[0]), content
    )


# --- The theme ---


# What the theme says in the language of a page, except the words of the configuration and of the search's dialog.
_SPANISH = {
    "Switch to the light palette": "Usar la paleta clara",
    "Switch to the dark palette": "Usar la paleta oscura",
    "Follow the system": "Seguir al sistema",
    'aria-label="Search"': 'aria-label="Buscar"',
    'title="Permanent link"': 'title="Enlace permanente"',
}


def is_spanish(page: Page) -> bool:
    """Return whether a page is in Spanish."""
    return page.file.src_uri.startswith("es/")


def on_page_context(context: dict[str, Any], page: Page, config: MkDocsConfig, **_: Any) -> dict[str, Any]:
    """Let the theme speak the language of the page."""
    config.theme["language"] = "es" if is_spanish(page) else "en"
    return context


def with_named_search(output: str) -> str:
    """Name the dialog of the search for screen readers."""
    search = 'data-md-component="search" role="dialog"'
    return output.replace(search, f'{search} aria-label="Search"')


def on_post_template(output_content: str, **_: Any) -> str:
    """Name the search of the page that is shown for a missing one."""
    return with_named_search(output_content)


def on_post_page(output: str, page: Page, **_: Any) -> str:
    """Name the search, and translate the words of the configuration on Spanish pages."""
    output = with_named_search(output)
    if is_spanish(page):
        for english, spanish in _SPANISH.items():
            output = output.replace(english, spanish)
    return output
