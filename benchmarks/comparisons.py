"""Compare the speed of this package with the fastest form of each peer in the same run, from the results."""

import dataclasses
import json
import operator
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

RESULTS = pathlib.Path(__file__).parent / "results"
Rates = Mapping[str, float]  # of the forms of a contender: the larger, the faster


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The ratio of the speed of this package to the speed of the fastest form of a peer in the same run.

    Args:
        topic: the subject of the measurement, a row of the README.
        case: the case within the topic; "" if there is one.
        peer: the name of the peer.
        peer_form: the fastest form of the peer; "" if only one was measured.
        default: the ratio for this package without options.
        best: the ratio for the fastest form of this package.
        best_form: the fastest form of this package.
        machine: the processor.
        remark: the version of the code, if it is not a recent one.
    """

    topic: str
    case: str
    peer: str
    peer_form: str
    default: float
    best: float
    best_form: str
    machine: str
    remark: str = ""


def read(name: str, folder: pathlib.Path = RESULTS) -> dict[str, Any]:
    """Return the results of a benchmark."""
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))


def runs(name: str, folder: pathlib.Path = RESULTS) -> list[dict[str, Any]]:
    """Return the results of all runs of a benchmark: NAME.json and NAME_….json."""
    return [read(path.stem, folder) for path in sorted(folder.glob(f"{name}*.json"))]


def machine(result: Mapping[str, Any]) -> str:
    """Return the name of the processor or GPU that a run recorded, with "(AVX2)" if a processor has no AVX-512."""
    device, extensions = result["machine"]["device"], result["machine"].get("vector_extensions", ())
    name = re.sub(r"^[CG]PU, |\(R\)| Processor$", "", device)
    has_only_avx2 = device.startswith("CPU") and "avx2" in extensions and "avx512f" not in extensions
    return f"{name} (AVX2)" if has_only_avx2 else name


def compare(
    topic: str, case: str, result: Mapping[str, Any], rates: Rates, peers: Mapping[str, Rates]
) -> Iterator[Comparison]:
    """Compare `rates` of this package, of which the first is the default, with the fastest form of each peer."""
    default, best_form = next(iter(rates.values())), max(rates, key=rates.__getitem__)
    for peer, forms in peers.items():
        form = max(forms, key=forms.__getitem__)
        ratios = default / forms[form], rates[best_form] / forms[form]
        yield Comparison(
            topic, case, peer, form, *ratios, best_form, machine(result), result.get("remark", "")
        )


def forms(contenders: Mapping[str, Mapping[str, Any]], names: Mapping[str, str]) -> dict[str, float]:
    """Return the rates of the measured contenders by form; `names` maps the names of contenders to forms."""
    return {form: contenders[name]["per_second"] for name, form in names.items() if name in contenders}


TRAINING_STEP = "a training step, batches of one shape"
TRAINING = "training on spa-eng"
ATTENTION = {
    "causal": "causal attention",
    "window": "attention in a window",
    "graph": "attention on a graph of Cora's size",
}
DEVICES = "training a GPT with JAX"
SERVING = "HTTP server"
GENERATION = {
    "seq2seq": "generation, encoder–decoder",
    "gpt": "generation, GPT-2's shape",
    "large": "generation, long outputs",
    "long": "generation, long outputs",
}


def generation_case(name: str, case: Mapping[str, Any]) -> str:
    """Return the name of a case of generation within its topic."""
    request = name.partition(", ")[2]
    return f"{request}, {case['tokens']} tokens" if case["shape"] in ("large", "long") else request


def train_step(folder: pathlib.Path = RESULTS) -> Iterator[Comparison]:
    """Compare a step of `fit` on every machine; Keras' default on a CPU is without XLA."""
    for result in runs("train_step", folder):
        figures = result["cases"]["step"]["contenders"]
        ours = forms(figures, {"keras_transformer": "without XLA", "keras_transformer, XLA": "with XLA"})
        peers = {
            "KerasHub": {"KerasHub": "without XLA", "KerasHub, XLA": "with XLA"},
            "PyTorch": {"PyTorch": "eager", "PyTorch, compiled": "compiled"},
        }
        rates = {peer: forms(figures, names) for peer, names in peers.items()}
        yield from compare(TRAINING_STEP, "", result, ours, rates)


OURS_ON_SPA_ENG = {
    "keras_transformer": "default",
    "keras_transformer, 4 lengths": "4 equal lengths",
    "keras_transformer, 8 shapes": "`length_buckets=8`",
    "keras_transformer, 64 shapes": "`length_buckets=64, pad_to_multiple_of=1`",
    "keras_transformer, packed": "packed",
}


def training(folder: pathlib.Path = RESULTS) -> Iterator[Comparison]:
    """Compare training on spa-eng; with XLA only with PyTorch, because KerasHub's fastest form was not measured."""
    for result in runs("training", folder):
        for name, case in result["cases"].items():
            figures, xla = case["contenders"], ", XLA" if case["xla"] else ""
            ours = forms(figures, {f"{name}{xla}": form for name, form in OURS_ON_SPA_ENG.items()})
            peers = {"PyTorch": forms(figures, {"PyTorch": ""})}
            if not xla:
                peers = {"KerasHub": forms(figures, {"KerasHub": "without XLA"}), **peers}
            yield from compare(TRAINING, name if xla else "", result, ours, peers)


def attention(folder: pathlib.Path = RESULTS) -> Iterator[Comparison]:
    """Compare attention, forward and backward, with `keras.ops.dot_product_attention`, where both were measured."""
    cases: dict[str, tuple[int, Any]] = {}
    for result in runs("attention", folder):
        for name, case in result["cases"].items():
            if result["settings"]["rounds"] > cases.get(name, (0, None))[0]:
                cases[name] = result["settings"]["rounds"], (result, case)
    for name, (_, (result, case)) in cases.items():
        modes = {"graph": "without XLA", "XLA": "with XLA"}
        rates = {
            contender: forms(
                case["contenders"], {f"{contender}, {mode}": form for mode, form in modes.items()}
            )
            for contender in ("ours", "Keras dense")
        }
        if rates["Keras dense"]:
            topic = ATTENTION[case["relation"]]
            short = name.removeprefix("Cora-size graph, ").removeprefix("causal, ")
            yield from compare(topic, short, result, rates["ours"], {"Keras": rates["Keras dense"]})


def devices(folder: pathlib.Path = RESULTS) -> Iterator[Comparison]:
    """Compare one and two devices of a CPU."""
    result = read("devices", folder)
    contenders = result["cases"][""]["contenders"]
    for name in contenders:
        contender, _, case = name.partition(", ")
        if contender == "keras_transformer":
            rates = {
                library: forms(contenders, {f"{library}, {case}": "with XLA"})
                for library in ("keras_transformer", "KerasHub")
            }
            yield from compare(DEVICES, case, result, rates.pop("keras_transformer"), rates)


def generation(folder: pathlib.Path = RESULTS) -> Iterator[Comparison]:
    """Compare generation on every machine that was measured, in floats and in int8."""
    for result in runs("generation", folder):
        for name, case in result["cases"].items():
            figures, short = case["contenders"], generation_case(name, case)
            topic = GENERATION[case["shape"]]
            names = {
                "ours, XLA": "in Python, with XLA",
                "ours, XLA bfloat16": "in Python, with XLA, in bfloat16",
                "ours, ONNX": "the ONNX export",
            }
            ours = forms(figures, names)
            peers = {
                "`transformers`": forms(
                    figures, {"transformers": "", "transformers bfloat16": "in bfloat16"}
                ),
                "CTranslate2": forms(figures, {"CTranslate2": "", "CTranslate2 float16": "in float16"}),
                "KerasHub": forms(figures, {"KerasHub, XLA": "with XLA"}),
            }
            measured = {peer: rates for peer, rates in peers.items() if rates}
            yield from compare(topic, short, result, ours, measured)
            if "CTranslate2 int8" in figures:
                ours = forms(figures, {"ours, ONNX int8": "the ONNX export in int8"})
                peers = {"CTranslate2 in int8": forms(figures, {"CTranslate2 int8": ""})}
                yield from compare(topic, short, result, ours, peers)


TRANSLATION = "translation of 1,000 sentences"


def translation(folder: pathlib.Path = RESULTS) -> Iterator[Comparison]:
    """Compare the translation of sentences of different lengths, in float32 and in int8."""
    for result in runs("translation", folder):
        for name, case in result["cases"].items():
            figures = case["contenders"]
            ours = forms(figures, {"ours, XLA": "in Python, with XLA", "ours, ONNX": "the ONNX export"})
            peers = {"CTranslate2": forms(figures, {"CTranslate2": ""})}
            yield from compare(TRANSLATION, name, result, ours, peers)
            ours = forms(figures, {"ours, ONNX int8": "the ONNX export in int8"})
            peers = {"CTranslate2 in int8": forms(figures, {"CTranslate2 int8": ""})}
            yield from compare(TRANSLATION, name, result, ours, peers)


ENCODER = "latency of an encoder as an ONNX graph"


def encoder_latency(folder: pathlib.Path = RESULTS) -> Iterator[Comparison]:
    """Compare the export of an encoder with both forms of PyTorch's."""
    for result in runs("encoder_latency", folder):
        for name, case in result["cases"].items():
            figures = case["contenders"]
            names = {"torch.onnx": "as exported", "torch.onnx, optimized": "optimized by ONNX Runtime"}
            peers = {"`torch.onnx`": forms(figures, names)}
            yield from compare(ENCODER, name, result, forms(figures, {"ours": "default"}), peers)


DECODER_ONLY = "generation, SmolLM2's shape"


# Of each precision, the forms of llama.cpp and CTranslate2 whose weights have as many bits.
DECODER_ONLY_PEERS = {
    "float32": {"llama.cpp": "llama.cpp F32", "CTranslate2": "CTranslate2 float32"},
    "int8": {"llama.cpp": "llama.cpp Q8_0", "CTranslate2": "CTranslate2 int8"},
    "int4": {"llama.cpp": "llama.cpp Q4_0"},
}


def further_tokens(result: Mapping[str, Any]) -> dict[str, dict[str, Mapping[str, float]]]:
    """Return the rates of further tokens of each contender and limit, by case.

    The cases with 1 and 2 threads are one, of which each contender's fastest counts.
    """
    fastest: dict[str, dict[str, Mapping[str, float]]] = {}
    for name, case in result["cases"].items():
        rates = fastest.setdefault("batch 1" if "thread" in name else name, {})
        for contender, figures in {**case.get("limits", {}), **case["contenders"]}.items():
            rate = 1 / figures["seconds_per_further_token"]
            before = rates.get(contender, {"per_second": 0.0})
            rates[contender] = max({"per_second": rate}, before, key=operator.itemgetter("per_second"))
    return fastest


def decoder_only(folder: pathlib.Path = RESULTS) -> Iterator[Comparison]:
    """Compare a further token of each precision with llama.cpp and CTranslate2."""
    for result in runs("decoder_only", folder):
        for name, rates in further_tokens(result).items():
            for precision, library in DECODER_ONLY_PEERS.items():
                measured = {peer: forms(rates, {key: ""}) for peer, key in library.items() if key in rates}
                ours = forms(rates, {f"ours, ONNX {precision}": "the ONNX export"})
                yield from compare(DECODER_ONLY, f"{precision}, {name}", result, ours, measured)


EMBEDDINGS = "embeddings of all-MiniLM-L6-v2"
EMBEDDINGS_OVER_HTTP = "embeddings of all-MiniLM-L6-v2 over HTTP"


def embeddings(folder: pathlib.Path = RESULTS) -> Iterator[Comparison]:
    """Compare the export of a sentence encoder with sentence-transformers."""
    names = {"PyTorch": "in PyTorch", "ONNX": "in ONNX Runtime"}
    for result in runs("embeddings", folder):
        for name, case in result["cases"].items():
            figures = case["contenders"]
            library = {f"sentence-transformers, {key}": form for key, form in names.items()}
            peers = {"sentence-transformers": forms(figures, library)}
            yield from compare(EMBEDDINGS, name, result, forms(figures, {"ours": "the ONNX export"}), peers)
            ours = forms(figures, {"ours, over HTTP": "the ONNX export"})
            if server := forms(figures, {"sentence-transformers, ONNX, over HTTP": "in ONNX Runtime"}):
                peers = {**peers, "sentence-transformers behind Starlette": server}
            yield from compare(EMBEDDINGS_OVER_HTTP, name, result, ours, peers)


FINE_TUNING = "fine-tuning of all-MiniLM-L6-v2"


def fine_tuning(folder: pathlib.Path = RESULTS) -> Iterator[Comparison]:
    """Compare `fit` with the trainers of `transformers` and sentence-transformers, and with KerasHub."""
    library = {
        "`transformers`": {
            "transformers, by length": "batches by length",
            "transformers, by length, compiled": "batches by length, compiled",
        },
        "sentence-transformers": {"sentence-transformers": ""},
        "KerasHub": {"KerasHub": "without XLA"},
    }
    for result in runs("fine_tuning", folder):
        for name, case in result["cases"].items():
            figures = case["contenders"]
            ours = forms(figures, {"ours": "without XLA", "ours, XLA": "with XLA"})
            rates = {peer: forms(figures, names) for peer, names in library.items()}
            peers = {peer: peer_rates for peer, peer_rates in rates.items() if peer_rates}
            yield from compare(FINE_TUNING, name, result, ours, peers)


TRANSCRIPTION = "transcription by whisper-tiny.en"


def transcription(folder: pathlib.Path = RESULTS) -> Iterator[Comparison]:
    """Compare the export of a Whisper with faster-whisper and `transformers`."""
    for result in runs("transcription", folder):
        for name, case in result["cases"].items():
            figures = case["contenders"]
            rates = {
                "faster-whisper": forms(figures, {"faster-whisper": ""}),
                "`transformers`": forms(figures, {"transformers": ""}),
            }
            peers = {peer: peer_rates for peer, peer_rates in rates.items() if peer_rates}
            yield from compare(
                TRANSCRIPTION, name, result, forms(figures, {"ours": "the ONNX export"}), peers
            )


def serving(folder: pathlib.Path = RESULTS) -> Iterator[Comparison]:
    """Compare requests per second over HTTP."""
    result = read("serving", folder)
    peers = {
        "Starlette": {
            "plain Starlette": "all threads",
            "plain Starlette, one thread": "one thread a request",
        },
        "LitServe": {"LitServe": "batches of 64"},
    }
    for name, case in result["cases"].items():
        figures = case["contenders"]
        rates = {peer: forms(figures, names) for peer, names in peers.items()}
        measured = {peer: peer_rates for peer, peer_rates in rates.items() if peer_rates}
        yield from compare(
            SERVING, name, result, forms(figures, {"keras-transformer-serve": "default"}), measured
        )


def all_comparisons(folder: pathlib.Path = RESULTS) -> list[Comparison]:
    """Return every comparison of speed in the results, the largest first."""
    benchmarks = (
        *(attention, train_step, training, devices, generation, decoder_only, translation),
        *(encoder_latency, embeddings, fine_tuning, transcription, serving),
    )
    comparisons = [comparison for benchmark in benchmarks for comparison in benchmark(folder)]
    return sorted(comparisons, key=lambda comparison: -comparison.default)
