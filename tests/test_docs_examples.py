"""Every public class and function has an example, in its docstring or on a page, or a reason why it has none."""

import importlib
import inspect
import pathlib
import re

import keras_transformer as kt

ROOT = pathlib.Path(__file__).resolve().parents[1]
PACKAGES = [f"keras_transformer.{name}" for name in kt.__all__ if name not in ("__version__", "datasets")]
WITHOUT = {
    "a result or an error, which callers do not construct": {
        *(
            "Alignment",
            "Answer",
            "Generation",
            "MaskPrediction",
            "ParityError",
            "Process",
            "Question",
            "ScoredLabel",
            "Scores",
        ),
        *("Span", "TaggedSentence", "TaggedWord"),
    },
    "an interface, which docs/extending.md describes": {
        *("GenerativeModel", "Generator", "KVCache", "Mixer", "Pipeline", "PositionBias"),
        *("EngineOptions", "PartFiles"),
    },
    "a value for an argument; the class or function that takes it has an example": {
        *(
            "BilinearScore",
            "Dropout",
            "EndTokens",
            "ForcedLastToken",
            "ForcedPrefix",
            "GATScore",
            "LinearBias",
            "Timestamps",
        ),
        *(
            "DynamicNTKScaling",
            "LinearScaling",
            "Llama3Scaling",
            "LongRoPEScaling",
            "NTKScaling",
            "YaRNScaling",
        ),
        *(
            "GrowingCache",
            "Perplexity",
            "RepetitionPenalty",
            "RetrievalMemory",
            "RollingCache",
            "StaticCache",
            "VocabularyShortlist",
        ),
    },
    "a relation that operators or the names of `relations.get` make": {
        "And",
        "Bipartite",
        "Not",
        "Or",
        "get",
    },
    "called as its neighbours with an example are": {
        *("GPTMultipleChoice", "Pretraining", "SpanClassifier", "TokenClassifier"),
        *("check_kernel", "config_of", "from_additive", "from_hidden", "generate_ids", "input_rows"),
        *("cross_attention_weights", "masked_language_modeling", "next_sentences", "plot_attention"),
        *("plot_embeddings", "plot_tokens"),
    },
    "the command `keras-transformer quickstart`": {"quickstart"},
    "made by `keras_transformer_serving.load`, or used by it": {
        *(
            "Bundle",
            "FillMask",
            "Graphs",
            "ServedCTranslate2",
            "ServedOnnx",
            "QuestionAnswering",
            "Sessions",
            "TokenClassification",
            "ZeroShotClassification",
        ),
        *("reads_text", "tokenizer_of", "uniform_noise"),
    },
}


def has_example(value):
    """Whether the docstring of a class or function, or of a method of the class, has an example."""
    members = vars(value).values() if inspect.isclass(value) else ()
    documented = [value, *(getattr(member, "__func__", member) for member in members)]
    return any(">>>" in (each.__doc__ or "") for each in documented)


def test_every_public_name_has_an_example_or_a_reason():
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in pages)
    shown = set(
        re.findall(r"\w+", "".join(re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)))
    )
    without, total = set(), 0
    for package in [*PACKAGES, "keras_transformer_serving"]:
        module = importlib.import_module(package)
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isclass(value) or inspect.isfunction(value):
                total += 1
                if not has_example(value) and name not in shown:
                    without.add(name)
    print(f"{total} public classes and functions; names without an example: {len(without)}")
    reasons = set().union(*WITHOUT.values())
    assert not without - reasons, "write an example, or name the reason"
    assert not reasons - set().union(
        *(vars(importlib.import_module(each)) for each in [*PACKAGES, "keras_transformer_serving"])
    )
