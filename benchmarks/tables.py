"""Write the tables of README.md and of the documentation from the results.

python benchmarks/tables.py            # make benchmark-tables
"""

import pathlib
import re
import statistics
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import comparisons
import cpu_training_profile as profile_of_training
import decoding_profile as decoding
import measuring
import request_profile as profile_of_requests
from comparisons import read

ROOT = pathlib.Path(__file__).resolve().parents[1]
_TABLED = ("attention", "benchmarks", "ctranslate2", "int4", "models", "published_weights", "serving")
PAGES = (
    ROOT / "README.md",
    *(ROOT / "docs" / f"{name}.md" for name in _TABLED),
)
BLOCK = re.compile(
    r"(<!-- benchmarks/tables\.py: ([a-z_]+)((?: \w+)*) -->\n).*?^(<!-- end -->)", re.DOTALL | re.MULTILINE
)


def ratio(value: float) -> str:
    """Format a ratio with at most three digits, in bold if this package is slower."""
    digits = 2 if value < 2 else 1 if value < 10 else 0
    return f"**{value:.{digits}f} ×**" if round(value, 2) < 1 else f"{value:.{digits}f} ×"


def span(values: Iterable[float]) -> str:
    """Format the range of several ratios."""
    ends = min(values := list(values)), max(values)
    return " to ".join(dict.fromkeys(map(ratio, ends))).replace(" × to", " to").replace(" ×** to", "** to")


def label(contender: str) -> str:
    """Return a contender's label: "this package" for "ours" and "keras_transformer" of the results."""
    return re.sub(r"^(ours|keras_transformer)\b", "this package", contender)


def milliseconds(contender: Mapping[str, Any]) -> str:
    """Format the time of a step."""
    value = 1000 * contender["seconds"]
    return f"{value:,.{0 if value >= 10 else 2}f} ms"


_TOPICS = {  # rows of the summary that have several topics
    **dict.fromkeys(comparisons.ATTENTION.values(), "attention: causal, in a window, on a graph"),
    **dict.fromkeys(
        (comparisons.TRAINING, comparisons.DEVICES, comparisons.FINE_TUNING), "training and fine-tuning"
    ),
    comparisons.EMBEDDINGS_OVER_HTTP: comparisons.EMBEDDINGS,
}


def summary() -> str:
    """Return the ranges of the default ratios to each peer on all machines."""
    rows: dict[str, dict[str, list[float]]] = {}
    machines_: dict[str, set[str]] = {}
    for each in comparisons.all_comparisons():
        if not each.remark:
            topic = _TOPICS.get(each.topic, each.topic)
            rows.setdefault(topic, {}).setdefault(each.peer, []).append(each.default)
            machines_.setdefault(topic, set()).add(each.machine)
    return measuring.table(
        [
            {
                "": topic,
                "as fast as the fastest form of": ", ".join(f"{peer} {span(row[peer])}" for peer in row),
                "on": ", ".join(sorted(machines_[topic])),
            }
            for topic, row in rows.items()
        ]
    )


def every_comparison() -> str:
    """Return a row for each case and peer, the largest ratio first."""
    rows = [
        {
            "": ", ".join(filter(None, (each.topic, each.case, each.remark))),
            "beside": ", ".join(filter(None, (each.peer, each.peer_form))),
            "by default": ratio(each.default),
            "fastest form": ratio(each.best),
            "which is": each.best_form,
            "on": each.machine,
        }
        for each in comparisons.all_comparisons()
    ]
    return measuring.table(rows)


def machines() -> str:
    """Return the machines of the comparisons, with their results and, if recorded, their date and commit."""
    names: dict[str, list[str]] = {}
    stems = (
        "attention*",
        "train_step*",
        "training*",
        "devices",
        "generation*",
        "decoder_only",
        "encoder_latency*",
        "embeddings*",
        "fine_tuning*",
        "transcription*",
        "serving",
    )
    for path in sorted(path for stem in stems for path in comparisons.RESULTS.glob(f"{stem}.json")):
        result = read(path.stem)
        recorded = result["machine"]
        extensions = ", ".join(recorded.get("vector_extensions", ())) or "vector extensions not recorded"
        name = f"{comparisons.machine(result)}, {recorded['cores']} cores, {extensions}"
        if recorded["device"].startswith("GPU"):
            name = f"{comparisons.machine(result)}, beside {recorded['cores']} cores"
        version = ", ".join(filter(None, map(recorded.get, ("date", "commit"))))
        link = f"[{path.stem}](../benchmarks/results/{path.name})"
        names.setdefault(name, []).append(f"{link} ({version})" if version else link)
    return "\n".join(f"- {name}: {', '.join(files)}." for name, files in names.items())


def train_step() -> str:
    """Return the time of a step of each contender."""
    rows = [
        {
            "": label(name),
            "a step": milliseconds(figures),
            "tokens/s": f"{figures['per_second']:,.0f}",
            "of the matrix multiplications' rate": f"{figures['share_of_limit']:.0%}",
            "peak memory": f"{figures['peak_memory_mib']:,.0f} MiB",
            "first step": f"{figures['first_seconds']:.0f} s",
            "on": comparisons.machine(result),
        }
        for result in comparisons.runs("train_step")
        for name, figures in result["cases"]["step"]["contenders"].items()
    ]
    return measuring.table(rows)


def step_profile() -> str:
    """Return the fractions of the time of a step by type of operation."""
    shares = read("step_profile")["shares"].items()
    return measuring.table([{"operations": name, "of a step": f"{share:.0%}"} for name, share in shares])


def decoding_profile(name: str = "decoding_profile") -> str:
    """Return the time of generation by type of operation, beside a peer."""
    result = read(name)
    rows = decoding.rows(result["cases"])
    return measuring.table([{**row, "": label(row[""]), "on": comparisons.machine(result)} for row in rows])


def cpu_training_profile() -> str:
    """Return the processor time of training by type of operation, beside the peers."""
    result = read("cpu_training_profile")
    rows = profile_of_training.rows(result["cases"])
    return measuring.table([{**row, "": label(row[""]), "on": comparisons.machine(result)} for row in rows])


def request_profile() -> str:
    """Return the processor time of the parts of a request."""
    result = read("request_profile")
    rows = profile_of_requests.rows(result["cases"])
    return measuring.table([{**row, "on": comparisons.machine(result)} for row in rows])


def training() -> str:
    """Return the tokens per second on spa-eng, with XLA and without."""
    rows = []
    cases = (
        (result, mode, case)
        for result in comparisons.runs("training")
        for mode, case in result["cases"].items()
    )
    for result, mode, case in cases:
        for name, figures in case["contenders"].items():
            ours = comparisons.OURS_ON_SPA_ENG.get(name.removesuffix(", XLA"))
            rows.append(
                {
                    "": label(f"ours, {ours}" if ours else name.removesuffix(", XLA")),
                    "run": mode,
                    "shapes": f"{figures['shapes']:.0f}",
                    "not padding": f"{figures['fill']:.2f}",
                    "tokens/s": f"{figures['per_second']:,.0f}",
                    "first steps, processor time": f"{figures['first_processor_seconds']:.0f} s",
                    "peak memory": f"{figures['peak_memory_mib']:,.0f} MiB",
                    "on": comparisons.machine(result),
                }
            )
    return measuring.table(rows)


def epoch_with_xla() -> str:
    """Return the minutes of an epoch of 4 million tokens, the first steps included, without XLA and with it."""
    batches = {
        "keras_transformer": "spa-eng, default",
        "keras_transformer, 8 shapes": "spa-eng, `length_buckets=8`",
        "keras_transformer, 4 lengths": "spa-eng, 4 equal lengths",
        "keras_transformer, packed": "spa-eng, packed",
    }
    minutes: dict[tuple[str, str], dict[bool, float]] = {}
    for kind in ("training", "train_step"):
        for result in comparisons.runs(kind):
            for case in result["cases"].values():
                for name, figures in case["contenders"].items():
                    ours = name.removesuffix(", XLA")
                    if ours in batches:
                        row = "one shape, a training step's" if kind == "train_step" else batches[ours]
                        seconds = figures["first_seconds"] + 4e6 / figures["per_second"]
                        minutes.setdefault((row, comparisons.machine(result)), {})[ours != name] = (
                            seconds / 60
                        )
    return measuring.table(
        [
            {
                "batches": row,
                "without XLA": f"{both[False]:.1f} min",
                "with XLA": f"{both[True]:.1f} min",
                "speed with XLA": ratio(both[False] / both[True]),
                "on": machine,
            }
            for (row, machine), both in sorted(minutes.items())
            if len(both) == 2
        ]
    )


def data() -> str:
    """Return the rates of tokenising and loading."""
    names = {
        ("tokenising", "in memory"): "tokenising, once, in memory",
        ("tokenising", "mapped"): "tokenising, once, into `cache_dir`",
        ("loading", "in memory"): "loading from memory",
        ("loading", "mapped"): "loading from files of `cache_dir`",
    }
    rows = []
    for (does, contender), name in names.items():
        case = read("data")["cases"][does]
        figures = case["contenders"][contender]
        share = figures.get("share_of_a_core_at_consumption")
        rows.append(
            {
                "": name,
                "tokens/s": f"{figures['per_second'] / 1e6:.2f} M",
                "by processor time": f"{figures['per_processor_second'] / 1e6:.2f} M",
                f"of a core at {case['consumption']:,} tokens/s": "–" if share is None else f"{share:.0%}",
            }
        )
    return measuring.table(rows)


def resume() -> str:
    """Return the time of a step with and without `ExactResume`."""
    rows = []
    for model, case in read("resume")["cases"].items():
        contenders = case["contenders"]
        steps = {name: f"{1000 * figures['seconds']:.1f} ms" for name, figures in contenders.items()}
        state = max(figures.get("state_mib", 0.0) for figures in contenders.values())
        rows.append({"model": model, "state": f"{state:.1f} MiB", **steps})
    return measuring.table(rows)


def devices() -> str:
    """Return the tokens per second of one and two devices."""
    rows = [
        {
            "": label(name),
            "tokens/s": f"{figures['per_second']:,.0f}",
            "beside its one device": f"{figures['times_one_device']:.1f} ×",
        }
        for name, figures in read("devices")["cases"][""]["contenders"].items()
    ]
    return measuring.table(rows)


def attention() -> str:
    """Return the time and memory of every form in each run."""
    names = {
        "Keras, without XLA": "Keras dense, graph",
        "Keras, with XLA": "Keras dense, XLA",
        label("ours, without XLA"): "ours, graph",
        label("ours, with XLA"): "ours, XLA",
    }
    rows = []
    for result in (read("attention_seven_rounds"), read("attention")):
        for case in result["cases"].values():
            figures = {
                name: f"{milliseconds(case['contenders'][key])}, {case['contenders'][key]['added_mib']:,.0f} MiB"
                if key in case["contenders"]
                else "–"
                for name, key in names.items()
            }
            rows.append({"": case["name"], "rounds": str(result["settings"]["rounds"]), **figures})
    return measuring.table(rows)


def generation(*shapes: str) -> str:
    """Return the tokens per second of each contender with models of these shapes."""
    rows: dict[tuple[str, str, str], dict[str, str]] = {}
    for result in comparisons.runs("generation"):
        cases = {name: case for name, case in result["cases"].items() if case["shape"] in shapes}
        for name, case in cases.items():
            topic = comparisons.GENERATION[case["shape"]].removeprefix("generation, ")
            for contender, figures in case["contenders"].items():
                machine = comparisons.machine(result)
                row = rows.setdefault((machine, topic, contender), {"": topic, "tokens/s": label(contender)})
                row |= {
                    comparisons.generation_case(name, case): f"{figures['per_second']:,.0f}",
                    "on": machine,
                }
    names = list(dict.fromkeys(name for row in rows.values() for name in row if name != "on"))
    return measuring.table([{name: row.get(name, "–") for name in [*names, "on"]} for row in rows.values()])


def decoder_step() -> str:
    """Return the time per further token and its lower limits on each CPU, by the number of decoder rows."""
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for result in comparisons.runs("generation"):
        if result["machine"]["device"].startswith("GPU"):
            continue
        machine = comparisons.machine(result)
        for case in result["cases"].values():
            if case["shape"] == "seq2seq":
                seconds = {name: figures["seconds"] for name, figures in case["limits"].items()}
                seconds |= {
                    name: figures["seconds_per_further_token"] for name, figures in case["contenders"].items()
                }
                for name, each in seconds.items():
                    row = rows.setdefault((machine, name), {"ms": label(name)})
                    digits = 2 if each > 1e-5 else 4
                    row[str(case["batch_size"] * case["beams"])] = f"{1000 * each:.{digits}f}"
    return measuring.table([{**row, "on": machine} for (machine, _), row in rows.items()])


# Of a contender of `generation.py`: its peer, the aim, and the limit of its library.
DECODING = {
    "ours, ONNX": ("CTranslate2", 1.3, "ONNX Runtime"),
    "ours, ONNX int8": ("CTranslate2 int8", 1.3, "ONNX Runtime, int8"),
    "ours, XLA": ("CTranslate2", 1.0, "XLA"),
}


def translation() -> str:
    """Return the tokens per second of each contender in each case, its BLEU and the most memory it took."""
    rows: dict[str, dict[str, str]] = {}
    cases = read("translation")["cases"]
    for name, case in cases.items():
        for contender, figures in case["contenders"].items():
            row = rows.setdefault(contender, {"tokens/s": label(contender)})
            row[name] = f"{figures['per_second']:,.0f}"
    for contender, row in rows.items():
        figures = [
            case["contenders"][contender] for case in cases.values() if contender in case["contenders"]
        ]
        scores = [case["contenders"][contender]["BLEU"] for name, case in cases.items() if "batches" in name]
        row["BLEU, greedy and beam 4"] = " and ".join(f"{score:.1f}" for score in scores)
        row["peak memory"] = f"{max(each['peak_memory_mib'] for each in figures):,.0f} MiB"
    return measuring.table(list(rows.values()))


def aims() -> str:
    """Return a row for each comparison that has an aim: the ratio on each machine, and the ratio of the limit."""
    rows: dict[tuple[str, str], dict[str, str]] = {}

    def add(name: str, beside: str, aim: float, result: Any, measured: float, limit: float | None) -> None:
        row = rows.setdefault((name, beside), {"": name, "beside": beside, "aim": f"{aim} ×"})
        most = "" if limit is None else f" of at most {limit:.2f} ×"
        row[comparisons.machine(result)] = f"{measured:.2f} ×{most}"

    for result in comparisons.runs("generation"):
        for contender, (peer, aim, library) in DECODING.items():
            for name, case in result["cases"].items():
                figures = case["contenders"]
                if contender in figures and peer in figures:
                    limits = {name: each["seconds"] for name, each in case["limits"].items()}
                    step = limits.get(f"the matrix multiplications, by {library}")
                    loop = 0 if library == "XLA" else limits.get("an empty loop of ONNX Runtime", 0)
                    limit = step and figures[peer]["seconds_per_further_token"] / (step + loop)
                    ratio_ = figures[contender]["per_second"] / figures[peer]["per_second"]
                    row = f"{label(contender)}: {comparisons.generation_case(name, case)}"
                    add(row, peer, aim, result, ratio_, limit)
    for step in comparisons.runs("train_step"):
        figures = step["cases"]["step"]["contenders"]
        ours, peer = figures["keras_transformer, XLA"], figures["KerasHub, XLA"]
        rate = ours["per_second"] / ours["share_of_limit"]
        ratios = ours["per_second"] / peer["per_second"], rate / peer["per_second"]
        add("this package, XLA: a training step", "KerasHub, XLA", 1.3, step, *ratios)
    for result in comparisons.runs("training"):
        for mode, case in result["cases"].items():
            for peer_name, aim in (("KerasHub", 1.5 if case["xla"] else 1.2), ("PyTorch", 1.1)):
                suffix = ", XLA" if case["xla"] and peer_name == "KerasHub" else ""
                best = max(
                    each["per_second"]
                    for name, each in case["contenders"].items()
                    if "keras_transformer" in name
                )
                peer_rate = case["contenders"][f"{peer_name}{suffix}"]["per_second"]
                limit = max((each["per_second"] for each in case.get("limits", {}).values()), default=None)
                add(
                    f"this package: training on spa-eng, {mode}",
                    f"{peer_name}{suffix}",
                    aim,
                    result,
                    best / peer_rate,
                    limit and limit / peer_rate,
                )
    for latency in comparisons.runs("encoder_latency"):
        for name, case in latency["cases"].items():
            seconds = {key: each["seconds"] for key, each in {**case["limits"], **case["contenders"]}.items()}
            ratios = (
                seconds["torch.onnx"] / seconds[key]
                for key in ("ours", "the matrix multiplications, by ONNX Runtime")
            )
            add(f"this package, ONNX: an encoder, {name}", "torch.onnx", round(1 / 0.85, 2), latency, *ratios)
    for result in comparisons.runs("embeddings"):
        for name, case in result["cases"].items():
            rates = {key: each["per_second"] for key, each in case["contenders"].items()}
            (limit,) = (each["per_second"] for each in case["limits"].values())
            peer = max(rate for key, rate in rates.items() if key.startswith("sentence-transformers"))
            for contender, door in (("ours", ""), ("ours, over HTTP", " over HTTP")):
                row = f"this package, ONNX: embeddings{door}, {name}"
                add(row, "sentence-transformers", 1.2, result, rates[contender] / peer, limit / peer)
            if server := rates.get("sentence-transformers, ONNX, over HTTP"):
                row = f"this package, ONNX: embeddings over HTTP, {name}"
                beside = "sentence-transformers behind Starlette"
                add(row, beside, 1.2, result, rates["ours, over HTTP"] / server, limit / server)
    for result in comparisons.runs("decoder_only"):
        for name, figures in comparisons.further_tokens(result).items():
            rates = {key: each["per_second"] for key, each in figures.items()}
            for precision, library in comparisons.DECODER_ONLY_PEERS.items():
                row = f"this package, ONNX: {comparisons.DECODER_ONLY}, {precision}, {name}"
                ours, limit = (
                    rates.get(f"{key} {precision}")
                    for key in ("ours, ONNX", "the matrix multiplications, by ONNX Runtime,")
                )
                for peer, key in library.items() if ours else ():
                    aim = 1.0 if peer == "llama.cpp" and name in ("batch 1", "prompt 512") else 1.3
                    if key in rates:
                        add(row, peer, aim, result, ours / rates[key], limit and limit / rates[key])
    for result in comparisons.runs("fine_tuning"):
        for name, case in result["cases"].items():
            rates = {key: each["per_second"] for key, each in case["contenders"].items()}
            ours = max(rate for key, rate in rates.items() if key.startswith("ours"))
            limit = max(each["per_second"] for each in case["limits"].values())
            for peer in dict.fromkeys(key.partition(",")[0] for key in rates):
                if peer != "ours":
                    rate = max(rate for key, rate in rates.items() if key.startswith(peer))
                    add(f"this package: fine-tuning, {name}", peer, 1.2, result, ours / rate, limit / rate)
    for result in comparisons.runs("transcription"):
        for name, case in result["cases"].items():
            rates = {key: each["per_second"] for key, each in case["contenders"].items()}
            row = f"this package, ONNX: transcription, {name}"
            add(row, "faster-whisper", 1.2, result, rates["ours"] / rates["faster-whisper"], None)
    return measuring.table(list(rows.values()))


def fine_tuning() -> str:
    """Return the texts per second of each trainer."""
    rows = [
        {
            "": f"{name}: {label(contender)}",
            "texts/s": f"{figures['per_second']:.0f}",
            "processor time of a text": f"{1000 * figures['processor_seconds'] / figures['units']:.0f} ms",
            "first epoch, processor time": f"{figures['first_processor_seconds']:.0f} s",
            "memory": f"{figures['peak_memory_mib']:,.0f} MiB",
            "on": comparisons.machine(result),
        }
        for result in comparisons.runs("fine_tuning")
        for name, case in result["cases"].items()
        for contender, figures in case["contenders"].items()
    ]
    return measuring.table(rows)


def serving() -> str:
    """Return the rate, latency and processor time of each server."""
    one, many = (read("serving")["cases"][name]["contenders"] for name in ("1 client", "64 clients"))
    rows = [
        {
            "": label(name),
            "requests/s, 64 clients": f"{figures['per_second']:,.0f}",
            "ms, p50 and p95": f"{figures['ms p50']:.0f} and {figures['ms p95']:.0f}",
            "processor time of a request": f"{1000 * figures['processor_seconds']:.1f} ms",
            "1 client: ms, p50": f"{one[name]['ms p50']:.1f}",
        }
        for name, figures in many.items()
    ]
    rows += [
        {"": name, "1 client: ms, p50": f"{one[name]['ms p50']:.1f}"} for name in one if name not in many
    ]
    return measuring.table(rows)


def encoder_runtimes() -> str:
    """Return the times of a sentence in each runtime of an encoder's export."""
    rows = []
    for name, case in read("encoder_runtimes")["cases"].items():
        reference = next(iter(case["contenders"].values()))
        for contender, figures in case["contenders"].items():
            sentences = case["batch_size"]
            milliseconds, processor = (
                1000 * figures[clock] / sentences for clock in ("seconds", "processor_seconds")
            )
            relative = reference["processor_seconds"] / figures["processor_seconds"]
            rows.append(
                {
                    "": name,
                    "runtime": contender,
                    "threads": str(figures["threads"]),
                    "ms a sentence": f"{milliseconds:.1f}",
                    "processor ms a sentence": f"{processor:.1f}",
                    "speed by processor time": "1" if figures is reference else f"{relative:.2f} ×",
                    "smallest cosine": f"{figures['cosine']:.4f}",
                    "memory": f"{figures['peak_memory_mib']:,.0f} MiB",
                }
            )
    return measuring.table(rows)


def overload() -> str:
    """Return what the server answers at twice the rate that it sustains."""
    load = read("serving")["load"]
    rows = {
        "requests per second": f"{load['requests per second']:,.0f}",
        "answered": f"{load['statuses']['200']:,}",
        "rejected (429)": f"{load['statuses']['429']:,}",
        "too many connections (503)": f"{load['statuses'].get('503', 0):,}",
        "closed without an answer": str(load["closed without an answer"]),
        "slowest answer": f"{load['longest ms'] / 1000:.2f} s",
        "memory in each third": f"{', '.join(f'{each:.0f}' for each in load['resident MB by thirds'])} MB",
    }
    return measuring.table([rows])


def joining_rows() -> str:
    """Return the gain of rows that join a running batch, relative to the generation loop."""
    ratios = {
        "a batch that is always full, without the cost of rows that join": "ratio, at most",
        "with this cost": "ratio of rows that join",
    }
    cases = read("serving")["mixed lengths"]
    return measuring.table(
        [
            {"tokens/s": name, **{case: f"{figures[key]:.2f} ×" for case, figures in cases.items()}}
            for name, key in ratios.items()
        ]
    )


def recurrent_generation() -> str:
    """Return the processor time of a token of each mixer, and the size of its state."""
    rows: dict[str, dict[str, str]] = {}
    for name, case in read("recurrent_generation")["cases"].items():
        for contender, figures in case["contenders"].items():
            row = rows.setdefault(contender, {"": contender})
            row[name] = f"{1000 * figures['processor_seconds']:.2f} ms, {figures['state_mib']:.2f} MiB"
    return measuring.table(list(rows.values()))


def inductive_bias() -> str:
    """Return the held-out accuracy with few samples, by relation."""
    result, samples = read("inductive_bias"), ("8", "32", "128", "512")
    rows = [
        {
            "task": task,
            "relation": relation,
            **{
                f"{count} samples": f"{statistics.mean(run['test'] for run in figures['runs'][count]):.1%}"
                for count in samples
            },
        }
        for task, relations in result["tasks"].items()
        for relation, figures in relations["relations"].items()
    ]
    return measuring.table(rows)


def experiment(name: str, *cases: str) -> str:
    """Return the means and standard deviations over seeds of an experiment.

    The rows are cases and the columns measures. If there is one case or one measure, the names of the others, such as
    "RBF, shared" or "87.5% by weight", are split into rows and columns.

    Args:
        name: the name of the results.
        *cases: parts of names of cases; all if there are none.
    """
    results = {
        case: result
        for case, result in read(name)["results"].items()
        if not cases or any(part in case for part in cases)
    }
    figures = {
        case: {
            measure: spread(values, len(result["runs"])) for measure, values in result["over seeds"].items()
        }
        for case, result in results.items()
    }
    seeds = {case: str(len(result["runs"])) for case, result in results.items()}
    if len(figures) == 1:
        ((case, rows),) = figures.items()
        return measuring.table([{**row, "seeds": seeds[case]} for row in pivoted(rows)])
    if {len(row) for row in figures.values()} == {1} and len(set(seeds.values())) == 1:
        rows = {case: next(iter(row.values())) for case, row in figures.items()}
        return measuring.table([{**row, "seeds": seeds[next(iter(seeds))]} for row in pivoted(rows)])
    measures = list(dict.fromkeys(measure for row in figures.values() for measure in row))
    return measuring.table(
        [
            {"": case, **{measure: row.get(measure, "–") for measure in measures}, "seeds": seeds[case]}
            for case, row in figures.items()
        ]
    )


def pivoted(figures: Mapping[str, str]) -> list[dict[str, str]]:
    """Return a row for each figure, or, if all names have two parts, for each first part."""
    names = {name: re.fullmatch("(.*)(?:, | by )(.*)", name) for name in figures}
    if not all(names.values()):
        return [{"": name, "figure": figure} for name, figure in figures.items()]
    parts = {name: match.groups() for name, match in names.items() if match}
    columns = list(dict.fromkeys(column for _, column in parts.values()))
    rows: dict[str, dict[str, str]] = {}
    for name, (row, column) in parts.items():
        rows.setdefault(row, {"": row, **dict.fromkeys(columns, "–")})[column] = figures[name]
    return list(rows.values())


def spread(values: Mapping[str, float], seeds: int) -> str:
    """Format the mean and, of several seeds, the standard deviation."""
    mean, deviation = values["mean"], values["standard_deviation"]
    digits = 0 if abs(mean) >= 1000 else 1 if abs(mean) >= 10 else 2
    return f"{mean:,.{digits}f}" + (f" ± {deviation:,.{digits}f}" if seeds > 1 else "")


def quantized_language_models() -> str:
    """Return the perplexity, the size and the identical ids of models in each precision."""
    rows = [
        {
            "": f"{name}, {precision}, {'ONNX graph' if kind == 'ONNX' else 'Keras model'}",
            "perplexity": f"{row['perplexity']:.2f}",
            "MB": f"{row['bytes'] / 1e6:.1f}",
            "identical ids, %": f"{100 * row['identical_ids']:.1f}",
        }
        for name, forms in read("int4_quality")["models"].items()
        for kind in ("ONNX", "Keras")
        for precision, row in forms[kind].items()
    ]
    return measuring.table(rows)


_CLOSENESS = {  # titles and formats of figures
    "largest_difference": ("largest difference", "{:.1e}"),
    "mean_cosine": ("mean cosine", "{:.4f}"),
    "smallest_cosine": ("smallest cosine", "{:.4f}"),
    "rank_correlation": ("rank correlation of similarities", "{:.4f}"),
    "equal_words": ("utterances with the same words", "{0[0]} of {0[1]}"),
    "equal_guesses": ("unclear utterances with the same words", "{0[0]} of {0[1]}"),
    "identical_ids": ("ids up to the first that differs", "{0[0]} of {0[1]}"),
}


def published_checkpoints(engine: str = "") -> str:
    """Return how close exports of real checkpoints are to other implementations.

    Args:
        engine: the engine of the exports; by default ONNX Runtime.
    """
    rows: dict[str, dict[str, str]] = {}
    result = read("parity_published")
    machine = comparisons.machine(result)
    for checkpoint, exports in result.items():
        for export, figures in exports.items() if checkpoint != "machine" else ():
            of_engine, _, precision = export.rpartition(", ")
            for name, value in figures.items() if of_engine == engine else ():
                title, form = _CLOSENESS[name]
                first = f"{checkpoint}: {title}"
                rows.setdefault(first, {f"on {machine}": first})[precision] = form.format(value)
    return measuring.table(list(rows.values()))


def decoder_only() -> str:
    """Return the time of a further token of each row by the decoder-only model of each contender, in each case."""
    result = read("decoder_only")
    cases = {name: {**case.get("limits", {}), **case["contenders"]} for name, case in result["cases"].items()}
    names = list(dict.fromkeys(name for figures in cases.values() for name in figures))
    rows = []
    for name in names:
        row = {"ms for a further token": label(name)}
        for case, measured in result["cases"].items():
            figures = cases[case].get(name)
            columns = {
                case: "seconds_per_further_token",
                f"{case}, processor time": "processor_seconds_per_further_token",
            }
            if measured.get("prompt", 0) > 100:  # reading it takes longest
                columns[f"{case}, first token"] = "seconds_to_first_token"
            for title, key in columns.items():
                row[title] = f"{1000 * figures[key]:.1f}" if figures and key in figures else "–"
        rows.append({**row, "on": comparisons.machine(result)})
    return measuring.table(rows)


BLOCKS: Mapping[str, Callable[..., str]] = {
    "published_checkpoints": published_checkpoints,
    "quantized_language_models": quantized_language_models,
    "decoder_only": decoder_only,
    "summary": summary,
    "every_comparison": every_comparison,
    "machines": machines,
    "train_step": train_step,
    "step_profile": step_profile,
    "decoding_profile": decoding_profile,
    "cpu_training_profile": cpu_training_profile,
    "request_profile": request_profile,
    "training": training,
    "fine_tuning": fine_tuning,
    "epoch_with_xla": epoch_with_xla,
    "data": data,
    "resume": resume,
    "devices": devices,
    "attention": attention,
    "generation": generation,
    "decoder_step": decoder_step,
    "translation": translation,
    "aims": aims,
    "serving": serving,
    "encoder_runtimes": encoder_runtimes,
    "overload": overload,
    "joining_rows": joining_rows,
    "recurrent_generation": recurrent_generation,
    "inductive_bias": inductive_bias,
    "experiment": experiment,
}


def updated(page: str) -> str:
    """Return the text of a page with new tables."""
    return BLOCK.sub(lambda block: f"{block[1]}{BLOCKS[block[2]](*block[3].split())}\n{block[4]}", page)


def main() -> None:
    """Write the tables of every page."""
    for page in PAGES:
        page.write_text(updated(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
