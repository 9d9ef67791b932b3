"""The page of a report: one self-contained HTML file."""

import html
import re
from collections.abc import Mapping, Sequence
from typing import Any

from keras_transformer.inspection.curves import best_epoch, curves
from keras_transformer.recipes.recipe import monitored

_WIDTH, _HEIGHT, _BOTTOM, _MARGIN, _CHARACTER = 360, 220, 28, 12, 7

_STYLE = """
:root { color-scheme: light dark; --text: #1c1e21; --quiet: #5f6670; --line: #d9dce1; --card: #f6f7f9;
  --page: #ffffff; --train: #2563c9; --validation: #c2560c; --wrong: #b42318; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e8eb; --quiet: #9aa2ad; --line: #363b43; --card: #1d2026;
  --page: #14161a; --train: #7cb0ff; --validation: #ffa552; --wrong: #ff8a80; } }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--text); background: var(--page); max-width: 60rem;
  margin: 0 auto; padding: 2rem 1rem; }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2.2rem 0 .6rem; }
p { margin: .3rem 0; color: var(--quiet); }
.cards { display: flex; flex-wrap: wrap; gap: .8rem; margin-top: 1rem; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: .7rem 1rem; }
.card b { display: block; font-size: 1.4rem; font-variant-numeric: tabular-nums; } .card span { color: var(--quiet); }
.curves { display: flex; flex-wrap: wrap; gap: 1rem; } svg { max-width: 100%; height: auto; }
svg text { fill: var(--quiet); font-size: 11px; } svg .title { fill: var(--text); font-size: 13px; }
.table { overflow-x: auto; } table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .35rem .7rem .35rem 0; border-bottom: 1px solid var(--line);
  overflow-wrap: break-word; min-width: 5rem; }
th { color: var(--quiet); font-weight: 500; } .wrong { color: var(--wrong); }
pre { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: .8rem; overflow-x: auto;
  white-space: pre-wrap; overflow-wrap: anywhere; } pre span { white-space: nowrap; }
.train { stroke: var(--train); } .validation { stroke: var(--validation); }
.best { stroke: var(--quiet); stroke-dasharray: 2 3; } i.best { border-left: 2px dotted var(--quiet); height: .8rem; }
i { display: inline-block; margin: 0 .3rem 0 .8rem; }
i.train, i.validation { display: inline-block; width: .8rem; height: .2rem; margin: 0 .3rem .25rem .8rem; }
i:first-child { margin-left: 0; }
i.train { background: var(--train); } i.validation { background: var(--validation); }
"""


def page(report: Mapping[str, Any]) -> str:
    """Return a report as an HTML page with metrics, curves, examples, the command and the options.

    Args:
        report: the content of `report.json`, see `recipes.run`.
    """
    counts, seconds, metrics = report["counts"], report["seconds"], report["metrics"]
    title = f"{report['task']} · {report['pipeline']}"
    date = report["date"].replace("T", " ").replace("+00:00", " UTC")
    stopped = f" Training was stopped by {report['signal']}." if report["signal"] else ""
    numbers = {name: value for name, value in metrics.items() if isinstance(value, int | float)}
    sections = [
        f"<h1>{_text(title)}</h1>",
        f"<p>{date} · {counts['train']:,} training examples · {report['parameters']:,} parameters · "
        f"{report['updates']:,} updates in {seconds['train']:,.0f} s.{stopped}</p>",
        f"<h2>Metrics on the {report['evaluated_on']} examples</h2>",
        f'<div class="cards">{"".join(_card(name, numbers[name], metrics) for name in numbers)}</div>',
        _classes(report),
        _curves(report["history"], report["options"].get("monitor", "loss")),
        _examples(report["examples"]),
        f"<h2>Command</h2><pre>{_command(report['command'])}</pre><p>in {_text(report['directory'])}</p>",
        _table("Options", ["option", "value"], report["options"].items()),
        _table("Versions", ["package", "version"], report["versions"].items()),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_text(title)}</title><style>{_STYLE}</style></head><body>\n"
        + "\n".join(section for section in sections if section)
        + "\n</body></html>\n"
    )


def _card(name: str, value: float, metrics: Mapping[str, Any]) -> str:
    interval = metrics.get("intervals", {}).get(name)
    between = f"<span>95 %: {_tick(interval[0])} to {_tick(interval[1])}</span>" if interval else ""
    return f'<div class="card"><span>{_label(name)}</span><b>{_number(value)}</b>{between}</div>'


def _classes(report: Mapping[str, Any]) -> str:
    """Return a table of the F1 and the numbers of examples of each class, if the task has classes."""
    f1, metrics, counts = report["metrics"].get("f1"), report["metrics"], report.get("classes", {})
    if not isinstance(f1, Mapping):
        return ""
    support = metrics.get("support", {})
    rows = [
        (name, "no example" if value is None else value, counts.get(name, 0), support.get(name, 0))
        for name, value in f1.items()
    ]
    return _table("Classes", ["class", "F1", "training examples", "evaluated examples"], rows)


def _curves(history: Mapping[str, Sequence[float]], monitor: str) -> str:
    best = best_epoch(history, **monitored(monitor))
    drawn = "".join(_curve(name, *pair, best) for name, pair in curves(history).items())
    marked = "" if best is None else f'<i class="best"></i>best validation {monitor}, epoch {best + 1}'
    legend = f'<p><i class="train"></i>training<i class="validation"></i>validation{marked}</p>'
    return f'<h2>Curves</h2>{legend}<div class="curves">{drawn}</div>' if drawn else ""


def _curve(name: str, train: Sequence[float], validation: Sequence[float], best: int | None) -> str:
    """Return the curve of a metric over epochs as SVG, with a line at the best epoch."""
    values = [value for value in (*train, *validation) if value - value == 0]  # finite
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    epochs = max(len(train), len(validation))
    span, last = (high - low) or 1.0, max(1, epochs - 1)
    levels = sorted({low, low + span / 2, low + span})
    left = _MARGIN + _CHARACTER * max(len(_tick(level)) for level in levels)
    right, bottom = _WIDTH - _MARGIN, _HEIGHT - _BOTTOM

    def place(epoch: int, value: float) -> tuple[float, float]:
        y = bottom - (value - low) / span * (bottom - 2 * _MARGIN - 10)
        return left + epoch / last * (right - left), y

    def line(values: Sequence[float], split: str) -> str:
        points = [place(epoch, value) for epoch, value in enumerate(values) if value - value == 0]
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        dots = "".join(
            f'<circle class="{split}" cx="{x:.1f}" cy="{y:.1f}" r="2" fill="none" />' for x, y in points
        )
        return f'<polyline class="{split}" points="{joined}" fill="none" stroke-width="1.8" />{dots}'

    ticks = "".join(
        f'<line x1="{left:.1f}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="var(--line)" />'
        f'<text x="{left - 5:.1f}" y="{y + 4:.1f}" text-anchor="end">{_tick(value)}</text>'
        for value, y in ((level, place(0, level)[1]) for level in levels)
    )
    x = 0.0 if best is None else place(best, low)[0]
    at_best = "" if best is None else f'<line class="best" x1="{x:.1f}" x2="{x:.1f}" y1="20" y2="{bottom}" />'
    return (
        f'<svg role="img" aria-label="{_label(name)} by epoch" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}">'
        f'<text class="title" x="{left:.1f}" y="14">{_label(name)}</text>{ticks}'
        f'<text x="{left:.1f}" y="{_HEIGHT - 8}">epoch 1</text>'
        f'<text x="{right}" y="{_HEIGHT - 8}" text-anchor="end">{epochs}</text>'
        f"{at_best}{line(train, 'train')}{line(validation, 'validation')}</svg>"
    )


def _examples(examples: Sequence[Mapping[str, Any]]) -> str:
    if not examples:
        return ""
    names = list(examples[0])
    rows = []
    for example in examples:
        wrong = "reference" in example and example["reference"] != example["answer"]
        cells = [
            f"<td{' class=wrong' if wrong and name == 'answer' else ''}>{_text(str(example[name])[:500])}</td>"
            for name in names
        ]
        rows.append(f"<tr>{''.join(cells)}</tr>")
    head = "".join(f"<th>{name}</th>" for name in names)
    return f'<h2>Examples</h2><div class="table"><table><tr>{head}</tr>{"".join(rows)}</table></div>'


def _command(command: str) -> str:
    """Return a command whose options are not broken into lines after their hyphens."""
    return re.sub(r"(?<=\s)--[\w-]+", r"<span>\g<0></span>", _text(command))


def _table(title: str, head: Sequence[str], rows: Any) -> str:
    cells = "".join(
        f"<tr><td>{_text(name)}</td>{''.join(f'<td>{_number(value)}</td>' for value in values)}</tr>"
        for name, *values in rows
    )
    named = "".join(f"<th>{name}</th>" for name in head)
    return f'<h2>{title}</h2><div class="table"><table><tr>{named}</tr>{cells}</table></div>' if cells else ""


def _tick(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _label(name: str) -> str:
    return _text(name.replace("_", " "))


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return _text(" ".join(map(str, value)))
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else _text(value)


def _text(value: Any) -> str:
    return html.escape(str(value))
