"""Write the tables of the reference pages from the parsers of the command line and from the server.

make reference-tables
"""

import argparse
import functools
import html
import pathlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping

from keras_transformer_cli import commands
from keras_transformer_options.metrics import METRICS
from keras_transformer_serving import command_line
from keras_transformer_serving.server import app, metrics, open_inference, tensorflow_serving

PAGES = sorted((pathlib.Path(__file__).resolve().parents[1]).glob("reference_*.md"))
BLOCK = re.compile(r"(<!-- docs/site/tables\.py: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
_PROTOCOLS = {
    "server": "the server",
    "tensorflow_serving": "TensorFlow Serving",
    "open_inference": "Open Inference Protocol",
    "openai": "OpenAI",
    "tei": "text-embeddings-inference",
    "libretranslate": "LibreTranslate",
}

Rows = dict[str, str]


def cell_text(text: str) -> str:
    """Return a text as a cell of a table; code with a bar is written so that GitHub and the site show the same."""

    def code(match: re.Match[str]) -> str:
        return f"<code>{html.escape(match[1], quote=False).replace('|', '&#124;')}</code>"

    return re.sub(r"`([^`|]*\|[^`]*)`", code, text).replace("|", r"\|")


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table in Markdown."""

    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(map(cell_text, cells)) + " |"

    header = list(header)
    return "\n".join([line(header), "|" + "---|" * len(header), *map(line, rows)])


def options(parser: argparse.ArgumentParser) -> Rows:
    """Return the description of each argument of a parser, by its form on the command line."""
    shown = [each for each in parser._actions if each.dest != "help" and each.help != argparse.SUPPRESS]
    return dict(map(_row, shown))


def _row(action: argparse.Action) -> tuple[str, str]:
    name = action.metavar or ("" if action.choices else action.dest.upper())
    value = f" {name}" if name else ""
    if not action.option_strings:
        value = str(action.metavar or action.dest)
    if action.nargs == 0 or isinstance(action, argparse.BooleanOptionalAction):
        value = ""
    form = f"`{', '.join(action.option_strings)}{value}`"
    if action.nargs in ("+", "*"):
        form += " …"
    values = {**vars(action), "choices": ", ".join(map(str, action.choices or ()))}
    text = " ".join(((action.help or "") % values).split())
    if action.choices and "%(choices)" not in (action.help or ""):
        known = ", ".join(f"`{choice}`" for choice in action.choices)
        text = f"{text.rstrip('.')}. One of {known}" if text else f"One of {known}"
    text = re.sub(r"(?<![`\w-])(--[a-z][a-z-]+)", r"`\1`", text)
    if action.required and action.option_strings:
        text += "; required"
    first = text.split(" ", 1)[0].rstrip(",")
    return form, (text[:1].upper() + text[1:] if first.isalpha() else text).rstrip(".")


def option_table(rows: Mapping[str, str]) -> str:
    """Return the table of options."""
    return table(("option", "meaning"), rows.items())


def parsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of the commands of a parser, by their names."""
    actions = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return {name: added for action in actions for name, added in action.choices.items()}


def command_line_options() -> str:
    """Return a section for each command, and for each task of `train`."""
    found = parsers(commands.parser())
    tasks = {name: options(task) for name, task in parsers(found["train"]).items()}
    first, *others = tasks.values()
    common = {form: text for form, text in first.items() if all(rows.get(form) == text for rows in others)}
    return "\n\n".join(
        part
        for name, parser in found.items()
        for part in (
            f"## {name}",
            f"{_sentence(parser.description)}",
            *(_tasks(tasks, common) if name == "train" else _command(options(parser), common)),
        )
    )


def _tasks(tasks: Mapping[str, Rows], common: Rows) -> Iterator[str]:
    yield "### Every task"
    yield option_table(common)
    for name, task in parsers(parsers(commands.parser())["train"]).items():
        yield f"### train {name}"
        yield _sentence(task.description)
        yield option_table({form: text for form, text in tasks[name].items() if form not in common})


def _command(rows: Rows, common: Rows) -> Iterator[str]:
    """Yield the options that a command does not share with the tasks of `train`, or with the server."""
    for title, shared in (
        ("[every task](#every-task)", common),
        ("[`keras-transformer-serve`](reference_server.md#options)", serve_options()),
    ):
        same = [form for form, text in rows.items() if shared.get(form) == text]
        if len(same) > len(shared) / 2:
            without = [form for form in shared if form not in same]
            rows = {form: text for form, text in rows.items() if form not in same}
            yield f"The options of {title}{', without ' + ', '.join(without) if without else ''}, and:"
    yield option_table(rows)


def _sentence(text: str | None) -> str:
    text = text or ""
    return f"{text[:1].upper()}{text[1:]}."


def serve_options() -> Rows:
    """Return the options of `keras-transformer-serve`."""
    parser = argparse.ArgumentParser()
    command_line.add_arguments(parser)
    return options(parser)


def routes() -> str:
    """Return the routes of every protocol of the server."""
    rows = []
    for api in (app.API, tensorflow_serving.API, open_inference.API, *app.APIS.values()):
        for method, path, endpoint in api.routes:
            described = endpoint
            if isinstance(endpoint, functools.partial):
                # The first argument is a form, which says more, or a part of the path.
                first = endpoint.args[0]
                described = endpoint.func if isinstance(first, str) else type(first)
            text = (described.__doc__ or "").split("\n")[0].rstrip(".")
            rows.append((_PROTOCOLS[api.name], f"`{method} {path}`", text))
    return table(("protocol", "route", "what it does"), rows)


def server_metrics() -> str:
    """Return the metrics of `/metrics`."""
    return table(
        ("metric", "type", "labels", "what it measures"),
        [
            (
                f"`{collected._name}{'_total' if collected._type == 'counter' else ''}`",
                collected._type,
                ", ".join(f"`{label}`" for label in collected._labelnames),
                collected._documentation.rstrip("."),
            )
            for collected in vars(metrics.Metrics()).values()
            if hasattr(collected, "_documentation")
        ],
    )


BLOCKS: Mapping[str, Callable[[], str]] = {
    "command_line": command_line_options,
    "serve": lambda: option_table(serve_options()),
    "routes": routes,
    "server_metrics": server_metrics,
    "metrics": lambda: table(
        ("metric", "what it is"), [(f"`{name}`", text) for name, text in METRICS.items()]
    ),
}


def updated(page: str) -> str:
    """Return the text of a page with new tables."""
    return BLOCK.sub(lambda block: f"{block[1]}\n{BLOCKS[block[2]]()}\n\n{block[3]}", page)


def main() -> None:
    """Write the tables of every page."""
    for page in PAGES:
        page.write_text(updated(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
