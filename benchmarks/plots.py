"""Draw the plots of docs/benchmarks.md from the results: SVG files in docs/images.

python benchmarks/plots.py            # make benchmark-plots

Texts have the color of the page around them on the site, and of the reader's palette elsewhere.
"""

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import comparisons
import matplotlib as mpl
from comparisons import read
from matplotlib import pyplot as plt

IMAGES = pathlib.Path(__file__).resolve().parents[1] / "docs" / "images"
TEXT = "#010203"  # replaced by the color of the page
STYLE = """<style>
svg { color: #1f2328 }
@media (prefers-color-scheme: dark) { svg { color: #e6edf3 } }
</style>
"""
# Readable on white and on black; ours first.
OURS, OURS_ALSO, PEERS = "#2a86c9", "#6aa84f", ("#d9822b", "#a879d6", "#c2577a", "#8a8f98")
LIMIT = "#d64545"
SETTINGS = {
    **{f"{name}.color": TEXT for name in ("text", "xtick", "ytick")},
    **{f"axes.{name}": TEXT for name in ("labelcolor", "edgecolor")},
    "axes.grid": True,
    "axes.grid.axis": "both",
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11,
    "font.family": "sans-serif",
    "font.size": 10,
    "grid.alpha": 0.2,
    "grid.color": TEXT,
    "legend.frameon": False,
    "legend.labelcolor": TEXT,
    "lines.linewidth": 2,
    "svg.fonttype": "none",
}


def bars(axes: Any, values: Mapping[str, float], form: str, colors: Sequence[str]) -> None:
    """Draw a horizontal bar for each value, the first at the top, with its figure."""
    drawn = axes.barh(list(values), list(values.values()), color=colors, height=0.65)
    axes.bar_label(drawn, [form.format(value) for value in values.values()], padding=4, color=TEXT)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    axes.margins(x=0.16)


def machine(result: Mapping[str, Any]) -> str:
    """Return the processor and the number of cores of a run."""
    return f"{comparisons.machine(result)}, {result['machine']['cores']} cores"


def train_step() -> Any:
    """Draw the tokens per second of a training step, and the limit of its matrix multiplications."""
    result = read("train_step")
    case = result["cases"]["step"]
    figure, axes = plt.subplots(figsize=(7.4, 3.1))
    contenders = sorted(case["contenders"].items(), key=lambda item: -item[1]["per_second"])
    names = [name for name, _ in contenders]
    rates = [figures["per_second"] for _, figures in contenders]
    colors = [OURS if name.startswith("keras_transformer") else PEERS[-1] for name in names]
    bars(axes, dict(zip(names, rates, strict=True)), "{:,.0f}", colors)
    limit = rates[0] / contenders[0][1]["share_of_limit"]
    axes.axvline(limit, color=LIMIT, linestyle="--")
    label = "the matrix\nmultiplications\nalone"
    axes.annotate(label, (limit, 0), (6, 0), textcoords="offset points", color=TEXT, va="center")
    axes.set_xlim(0, 1.22 * limit)
    axes.set_xlabel(f"tokens per second, {machine(result)}")
    return figure


def step_profile() -> Any:
    """Draw the fractions of a training step by type of operation."""
    result = read("step_profile")
    shares = {name: 100 * share for name, share in result["shares"].items()}
    figure, axes = plt.subplots(figsize=(7.4, 2.6))
    bars(axes, shares, "{:.0f} %", [OURS, *[PEERS[-1]] * (len(shares) - 1)])
    axes.set_xlabel(f"% of the {result['milliseconds']:,.0f} ms of a step, {machine(result)}")
    return figure


def attention() -> Any:
    """Draw the time and the memory of causal and of window attention over the length."""
    result = read("attention")
    figure, panels = plt.subplots(1, 2, figsize=(7.4, 3.6), layout="constrained")
    lines = (
        ("causal, keras_transformer", "causal, n = ", "ours, graph", OURS, "-"),
        ("causal, Keras", "causal, n = ", "Keras dense, graph", PEERS[0], "-"),
        ("window of 256, keras_transformer", "window 256, n = ", "ours, graph", OURS, ":"),
        ("window of 256, Keras", "window 256, n = ", "Keras dense, graph", PEERS[0], ":"),
    )
    for label, prefix, contender, color, style in lines:
        cases = sorted(
            (case for name, case in result["cases"].items() if name.startswith(prefix)),
            key=lambda case: case["length"],
        )
        cases = [case for case in cases if contender in case["contenders"] and case["length"] >= 1024]
        lengths = [case["length"] for case in cases]
        for axes, figures in zip(panels, ("seconds", "added_mib"), strict=True):
            values = [case["contenders"][contender][figures] for case in cases]
            axes.plot(lengths, values, style, color=color, marker="o", markersize=4, label=label)
    for axes, title in zip(panels, ("seconds, forward and backward", "memory, MiB"), strict=True):
        axes.set(xscale="log", yscale="log", title=title, xlabel="length n")
        axes.set_xticks([1024, 8192, 65536], ["1,024", "8,192", "65,536"])
        axes.minorticks_off()
    figure.suptitle(machine(result), fontsize=10, color=TEXT)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=9)
    return figure


def generation() -> Any:
    """Draw the time per further token over the hypotheses in a batch, with the limits of its products."""
    result = read("generation")
    cases = [case for case in result["cases"].values() if case["shape"] == "seq2seq"]
    rows = [f"{case['batch_size'] * case['beams']}" for case in cases]
    figure, axes = plt.subplots(figsize=(7.4, 4), layout="constrained")
    contenders = (
        ("ours, XLA", OURS, "-"),
        ("ours, ONNX", OURS_ALSO, "-"),
        ("ours, ONNX int8", OURS_ALSO, "--"),
        ("CTranslate2", PEERS[0], "-"),
        ("CTranslate2 int8", PEERS[0], "--"),
        ("transformers", PEERS[1], "-"),
    )
    for name, color, style in contenders:
        times = [1000 * case["contenders"][name]["seconds_per_further_token"] for case in cases]
        axes.plot(
            rows,
            times,
            style,
            color=color,
            marker="o",
            markersize=4,
            label=name.replace("ours", "keras_transformer"),
        )
    limit = "the matrix multiplications, by ONNX Runtime"
    for name, precision, style in ((limit, "float32", "-."), (f"{limit}, int8", "int8", ":")):
        limits = [1000 * case["limits"][name]["seconds"] for case in cases]
        axes.plot(rows, limits, style, color=LIMIT, label=f"limit: matrix multiplications in {precision}")
    axes.set(
        yscale="log",
        xlabel="hypotheses in a batch: 1 and 8 texts, greedy and with 4 beams",
        ylabel="ms per further token",
        title=f"Encoder–decoder with 3+3 layers on {machine(result)}",
    )
    axes.set_yticks([0.1, 0.2, 0.5, 1, 2, 5, 10], ["0.1", "0.2", "0.5", "1", "2", "5", "10"])
    axes.minorticks_off()
    axes.margins(x=0.03)
    figure.legend(loc="outside lower center", ncols=2, fontsize=9)
    return figure


def serving() -> Any:
    """Draw the requests per second and the 95th percentile of latency of servers at 64 clients."""
    result = read("serving")
    contenders = result["cases"]["64 clients"]["contenders"]
    colors = [OURS if name.startswith("keras") else PEERS[-1] for name in contenders]
    figure, panels = plt.subplots(1, 2, figsize=(7.4, 2.5), layout="constrained", sharey=True)
    for axes, key, title in (
        (panels[0], "per_second", "requests per second"),
        (panels[1], "ms p95", "95th percentile of latency, ms"),
    ):
        bars(axes, {name: figures[key] for name, figures in contenders.items()}, "{:,.0f}", colors)
        axes.set_title(title)
    panels[1].invert_yaxis()  # the panels share it
    figure.supxlabel(f"64 clients, {machine(result)}", fontsize=10, color=TEXT)
    return figure


def inductive_bias() -> Any:
    """Draw the held-out accuracy over the number of training samples, by relation."""
    result = read("inductive_bias")
    figure, panels = plt.subplots(1, 2, figsize=(7.4, 3.4), layout="constrained", sharey=True)
    names = {
        "right": "exact relation",
        "loose": "wider relation",
        "complete": "complete relation",
        "wrong": "wrong one",
    }
    colors = (OURS, OURS_ALSO, PEERS[0], PEERS[-1])
    for axes, (task, relations) in zip(panels, result["tasks"].items(), strict=True):
        for (relation, label), color in zip(names.items(), colors, strict=True):
            runs = relations["relations"][relation]["runs"]
            means = [100 * sum(run["test"] for run in each) / len(each) for each in runs.values()]
            axes.plot(list(runs), means, color=color, marker="o", markersize=4, label=label)
        axes.set(title=f"{task} task", xlabel="training samples")
    panels[0].set_ylabel("held-out accuracy, %")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=9)
    return figure


PLOTS: Mapping[str, Callable[[], Any]] = {
    "attention": attention,
    "generation": generation,
    "inductive_bias": inductive_bias,
    "serving": serving,
    "step_profile": step_profile,
    "train_step": train_step,
}


def write(name: str) -> pathlib.Path:
    """Draw a plot, and return its file."""
    path = IMAGES / f"benchmark_{name}.svg"
    with mpl.rc_context({**SETTINGS, "svg.hashsalt": name}):
        figure = PLOTS[name]()
        figure.savefig(path, transparent=True, bbox_inches="tight", metadata={"Date": None, "Creator": None})
        plt.close(figure)
    text = path.read_text(encoding="utf-8").replace(TEXT, "currentColor")
    text = text[text.index("<svg") :]
    start = text.index(">") + 1
    lines = [line.rstrip() for line in (text[:start] + "\n" + STYLE + text[start:]).splitlines()]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def main() -> None:
    """Draw every plot."""
    IMAGES.mkdir(exist_ok=True)
    for name in PLOTS:
        print(write(name))


if __name__ == "__main__":
    mpl.use("svg")
    main()
