"""Compare sentence embeddings of `sentence-transformers` and of this package, for folders that the library writes.

The library saves models with random weights, of each family of encoders, with each pooling, with and without Dense,
LayerNorm and Normalize, with prompts, in the folder layout of its newer and older versions. It reads each folder again
and embeds texts: short and long texts, texts without tokens, with special tokens, with accents and in other scripts.
Its vectors are compared with those of the pipeline of `pipelines.from_hugging_face`, the SavedModel,
`keras_transformer_serving`, and the ONNX graph with the library's ids. Folders that are not supported must raise an
error.

    .venv-bench/bin/python benchmarks/parity/sentence_embeddings.py            # --help lists the options
"""

import dataclasses
import functools
import io
import json
import os
import pathlib
import sys
import tempfile
from collections.abc import Callable
from typing import Any

os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("TF2ONNX_CATCH_ERRORS", "FALSE")  # as in the Makefile: it converts faster

import numpy as np
import onnxruntime
import sentencepiece
import tensorflow as tf
import torch
import transformers
from hugging_face import randomise
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import references

import keras_transformer_serving as serving
from keras_transformer import export, pipelines, text
from keras_transformer.datasets import phrasebook

SIZES = {
    "small": {
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "max_position_embeddings": 64,
    },
    # as all-MiniLM-L6
    "mini": {
        "hidden_size": 384,
        "num_hidden_layers": 6,
        "num_attention_heads": 12,
        "intermediate_size": 1536,
        "max_position_embeddings": 512,
    },
}
MAX_LENGTH = 24
POOLINGS = modules.Pooling.POOLING_MODES
PROMPTS = {"prompts": {"query": "la pregunta: ", "passage": "[MASK] "}, "default_prompt_name": "query"}
CALLS: tuple[dict[str, str], ...] = ({}, {"prompt_name": "passage"}, {"prompt": "el texto "}, {"prompt": ""})


@dataclasses.dataclass(frozen=True)
class Case:
    """A folder: its pooling, a function from a size to the modules after it, and options."""

    pooling: str | tuple[str, ...] = "mean"
    after: Callable[[int], list[Any]] = lambda size: [modules.Normalize()]
    prompts: bool = False
    older: bool = False
    cased: bool = False
    size: str = "small"
    family: str = "BERT"
    truncate_dim: int | None = None


def dense(inputs: int, outputs: int, activation: Any, **options: Any) -> Any:
    """Return a module Dense with random weights."""
    return modules.Dense(inputs, outputs, activation_function=activation, **options)


def of_labse(size: int) -> list[Any]:
    """Return the modules after the pooling of LaBSE."""
    return [dense(size, size, torch.nn.Tanh()), modules.Normalize()]


def several_layers(size: int) -> list[Any]:
    """Return modules of every type."""
    return [
        dense(size, 48, torch.nn.GELU()),
        modules.LayerNorm(48),
        modules.Normalize(),
        dense(48, 32, torch.nn.Identity(), bias=False),
    ]


@dataclasses.dataclass(frozen=True)
class Family:
    """A family of encoders.

    Attributes:
        name: the beginning of the classes' names in `transformers`.
        tokenizer: the name of a function that writes its tokenizer.
        settings: of its config, beside the sizes.
        extra_positions: the number of positions that are not for tokens.
        is_passed: whether the tokenizer has to be passed to `from_hugging_face`.
    """

    name: str
    tokenizer: str = "word pieces"
    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    extra_positions: int = 0
    is_passed: bool = False


ONE_SEGMENT = {"type_vocab_size": 1, "pad_token_id": 1}
FAMILIES = {
    "BERT": Family("Bert"),
    "BERT with XLM-R's tokenizer": Family("Bert", "XLM-R"),
    "DistilBERT": Family("DistilBert", settings={"hidden_dim": 128}),
    "RoBERTa": Family("Roberta", "byte pairs", ONE_SEGMENT, 2),
    "XLM-R": Family("XLMRoberta", "XLM-R", ONE_SEGMENT, 2),
    "CamemBERT": Family("Camembert", "CamemBERT", ONE_SEGMENT, 2),
    "ALBERT": Family("Albert", settings={"embedding_size": 48}, is_passed=True),
    "ModernBERT": Family("ModernBert", settings={"pad_token_id": 0}, is_passed=True),
}
CASES = {
    **{f"pooling {name}": Case(name, lambda size: []) for name in POOLINGS},
    **{f"pooling {name}, normalised, older layout": Case(name, older=True) for name in ("cls", "lasttoken")},
    "all poolings": Case(POOLINGS, lambda size: []),
    "mean and max, older layout, Dense": Case(("max", "mean"), of_labse, older=True),
    "as LaBSE: cls, Dense, normalised": Case("cls", of_labse),
    "several layers": Case("mean", several_layers),
    "prompts": Case("cls", prompts=True),
    "prompts, Dense, older layout": Case("mean", of_labse, prompts=True, older=True),
    "do_lower_case of a cased tokenizer, older layout": Case("mean", cased=True, older=True),
    "size of all-MiniLM-L6": Case("mean", size="mini"),
    "size of all-MiniLM-L6, cls, prompts": Case("cls", prompts=True, size="mini"),
    "the first 8 values": Case("mean", lambda size: [], truncate_dim=8),
    "the first 8 values of normalised vectors": Case("mean", truncate_dim=8),
    **{f"family {name}": Case("mean", family=name) for name in FAMILIES if name != "BERT"},
    "family XLM-R, cls, normalised, older layout, as bge-m3": Case("cls", older=True, family="XLM-R"),
}


@functools.cache
def lines() -> list[str]:
    """Return sentences, to train tokenizers."""
    return [line for pair in phrasebook.load_data()[0] for line in pair]


def texts_to_embed() -> list[str]:
    """Return short and long texts, texts without tokens, with special tokens, accents and other scripts."""
    odd = ["", " \t ", "☃ 中文 naïve É é", "¿Dónde?  ¡AQUÍ!", "x" * 101, "ﬁn\u00a0 de\u200dl"]
    return [*lines()[:12], *odd, " ".join(lines()[:20]), " ".join(lines()[20:23])]


# Texts with special tokens, which SentencePiece tokenizers here read as ordinary text.
SPECIAL_TEXTS = {"word pieces": "a [SEP] b [MASK] [CLS]", "byte pairs": "a </s> b <mask> <s>"}


def word_pieces(folder: pathlib.Path, cased: bool) -> None:
    """Write BERT's tokenizer."""
    pieces = text.WordPieceTokenizer.train(lines(), 600).vocabulary
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    transformers.BertTokenizerFast(str(folder / "vocab.txt"), do_lower_case=not cased).save_pretrained(folder)


def byte_pairs(folder: pathlib.Path, cased: bool) -> None:
    """Write RoBERTa's tokenizer."""
    roles = {"start": "<s>", "pad": "<pad>", "end": "</s>", "unknown": "<unk>", "mask": "<mask>"}
    trained = text.BytePairTokenizer.train(lines(), 600, special_tokens=roles)
    vocabulary = {piece: id_ for id_, piece in enumerate(trained.vocabulary)}
    (folder / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    merges = "\n".join(["#version: 0.2", *map(" ".join, trained.merges), ""])
    (folder / "merges.txt").write_text(merges, encoding="utf-8")
    transformers.RobertaTokenizerFast.from_pretrained(str(folder)).save_pretrained(folder)


def unigrams(name: str, folder: pathlib.Path, cased: bool) -> None:
    """Write a tokenizer of a SentencePiece model."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines()), model_writer=model, vocab_size=600, minloglevel=2
    )
    (folder / "sentencepiece.bpe.model").write_bytes(model.getvalue())
    getattr(transformers, name).from_pretrained(str(folder)).save_pretrained(folder)
    (folder / "sentencepiece.bpe.model").unlink()


TOKENIZERS: dict[str, Callable[[pathlib.Path, bool], None]] = {
    "word pieces": word_pieces,
    "byte pairs": byte_pairs,
    "XLM-R": functools.partial(unigrams, "XLMRobertaTokenizer"),
    "CamemBERT": functools.partial(unigrams, "CamembertTokenizer"),
}


def write_encoder(case: Any, folder: pathlib.Path, seed: int, head: str = "Model", **settings: Any) -> Any:
    """Write an encoder of a family with a tokenizer, with random weights; return its config."""
    torch.manual_seed(seed)
    folder.mkdir()
    family, sizes = FAMILIES[case.family], SIZES[case.size]
    TOKENIZERS[family.tokenizer](folder, case.cased)
    kind = getattr(transformers, family.name + head)
    positions = sizes["max_position_embeddings"] + family.extra_positions
    config = kind.config_class(
        vocab_size=len(transformers.AutoTokenizer.from_pretrained(str(folder))),
        **{**sizes, "max_position_embeddings": positions, **family.settings, **settings},
    )
    model = kind(config).eval()
    randomise(model, seed)
    model.save_pretrained(folder)
    return config


def passed_tokenizer(case: Any, folder: pathlib.Path) -> dict[str, Any]:
    """Return the tokenizer as an argument, for families whose tokenizer is not read."""
    if not FAMILIES[case.family].is_passed:
        return {}
    return {"tokenizer": text.WordPieceTokenizer.from_files(folder, special_tokens_in_text=True)}


def write(case: Case, folder: pathlib.Path, seed: int) -> None:
    """Save a model with the library."""
    config = write_encoder(case, folder / "encoder", seed)
    size, count = config.hidden_size, 1 if isinstance(case.pooling, str) else len(case.pooling)
    transformer = modules.Transformer(str(folder / "encoder"), max_seq_length=MAX_LENGTH)
    parts = [transformer, modules.Pooling(size, case.pooling)]
    options = {"truncate_dim": case.truncate_dim, **(PROMPTS if case.prompts else {})}
    SentenceTransformer(modules=[*parts, *case.after(count * size)], **options).save(str(folder / "it"))
    if case.older:
        to_older_layout(folder / "it", case)


def to_older_layout(folder: pathlib.Path, case: Case) -> None:
    """Change a folder to the layout of the library's versions 1 and 2."""
    listed = json.loads((folder / "modules.json").read_text())
    for module in listed:
        module["type"] = f"sentence_transformers.models.{module['type'].rpartition('.')[2]}"
    listed[0]["path"] = "0_Transformer"
    (folder / "0_Transformer").mkdir()
    for path in [path for path in folder.iterdir() if path.is_file()]:
        if path.name not in ("modules.json", "config_sentence_transformers.json", "README.md"):
            path.rename(folder / "0_Transformer" / path.name)
    (folder / "modules.json").write_text(json.dumps(listed))
    settings = {"max_seq_length": MAX_LENGTH, "do_lower_case": case.cased}
    (folder / "0_Transformer" / "sentence_bert_config.json").write_text(json.dumps(settings))
    path = folder / "0_Transformer" / "tokenizer_config.json"
    tokenizer = json.loads(path.read_text())
    path.write_text(json.dumps({**tokenizer, "model_max_length": 512}))
    path = folder / "1_Pooling" / "config.json"
    config = json.loads(path.read_text())
    modes = [config["pooling_mode"]] if isinstance(config["pooling_mode"], str) else config["pooling_mode"]
    settings = {
        "cls_token": "cls",
        "mean_tokens": "mean",
        "max_tokens": "max",
        "mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
        "weightedmean_tokens": "weightedmean",
        "lasttoken": "lasttoken",
    }
    booleans = {f"pooling_mode_{name}": mode in modes for name, mode in settings.items()}
    path.write_text(json.dumps({"word_embedding_dimension": config["embedding_dimension"], **booleans}))


def compare(case: Case, seed: int) -> references.Figures:
    """Return the largest difference of a value for each way of computing the vectors here."""
    special = SPECIAL_TEXTS.get(FAMILIES[case.family].tokenizer)
    texts = [*texts_to_embed(), *([special] if special else [])]
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        write(case, folder, seed)
        theirs = SentenceTransformer(str(folder / "it"), device="cpu")
        calls = CALLS if case.prompts else CALLS[:1]
        expected = [theirs.encode(texts, **call) for call in calls]
        ours = pipelines.from_hugging_face(folder / "it", **passed_tokenizer(case, folder / "encoder"))
        export.bundle(ours, folder / "export", name="it", precisions=("float32",))
        signatures = tf.saved_model.load(str(folder / "export" / "saved_model" / "it" / "1")).signatures

        def saved_model(call: dict[str, str]) -> np.ndarray:
            if not call:
                return signatures["serving_default"](text=tf.constant(texts))["embedding"].numpy()
            options = {name: tf.constant([call.get(name, "")]) for name in ("prompt_name", "prompt")}
            return signatures["embed"](text=tf.constant(texts), **options)["embedding"].numpy()

        served = serving.load(folder / "export")
        ways = {
            "pipeline": lambda call: ours(texts, **call),
            "SavedModel": saved_model,
            "keras_transformer_serving": lambda call: served(texts, **call),
        }
        results = {
            name: max(
                float(np.abs(way(call) - vectors).max())
                for call, vectors in zip(calls, expected, strict=True)
            )
            for name, way in ways.items()
        }
        session = onnxruntime.InferenceSession(str(folder / "export" / "onnx" / "model.onnx"))
        features = theirs.preprocess(texts, prompt=theirs._resolve_prompt(None, None))
        ids = features["input_ids"].numpy()
        feed = {
            each.name: features[each.name].numpy() if each.name in features else np.zeros_like(ids)
            for each in session.get_inputs()
        }
        (vectors,) = session.run(["sentence_embedding"], feed)
        results["ONNX graph, the library's ids"] = float(np.abs(vectors - expected[0]).max())
        largest = float(max(np.abs(vectors).max() for vectors in expected))
        return {
            **results,
            "relative": max(results.values()) / max(1.0, largest),
            "largest value": largest,
            "vectors": f"{len(texts)} texts, {len(calls)} calls, {vectors.shape[1]} values",
        }


def refusals() -> references.Figures:
    """Return the errors for folders of the library that are not supported."""
    results = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        write(Case(), folder, 0)
        transformer, size = modules.Transformer(str(folder / "encoder")), SIZES["small"]["hidden_size"]
        pooling = modules.Pooling(size)
        (folder / "mpnet").mkdir()
        word_pieces(folder / "mpnet", cased=False)
        mpnet = transformers.MPNetConfig(vocab_size=600, **SIZES["small"])
        transformers.MPNetModel(mpnet).save_pretrained(folder / "mpnet")
        router = modules.Router({"query": [transformer, pooling], "document": [transformer, pooling]})
        cases = {
            "include_prompt=False": [transformer, modules.Pooling(size, include_prompt=False)],
            "a residual Dense": [transformer, pooling, modules.Dense(size, size, use_residual=True)],
            "ELU": [transformer, pooling, dense(size, size, torch.nn.ELU())],
            "CNN": [transformer, modules.CNN(size, 32), modules.Pooling(96)],
            "Dropout": [transformer, pooling, modules.Dropout()],
            "MPNet": [modules.Transformer(str(folder / "mpnet")), pooling],
            "Router": [router],
        }
        for name, parts in cases.items():
            SentenceTransformer(modules=parts).save(str(folder / name))
        for name in cases:
            try:
                pipelines.from_hugging_face(folder / name)
                results[name] = "accepted"
            except (ValueError, FileNotFoundError) as error:
                results[name] = f"{type(error).__name__}: {error}".replace(str(folder), "")
    refused = sum(error != "accepted" for error in results.values())
    return {"refused": [refused, len(results)], "errors": results}


UNSUPPORTED = "folders that are not supported"
REFERENCE = references.Reference(
    __file__,
    __doc__,
    {UNSUPPORTED: None, **CASES},
    lambda run: compare(run.case, run.seed) if run.case else refusals(),
    limits={"relative": 1e-5},
    equal=("refused",),
    packages=("sentence-transformers",),
    name="parity_sentence_embeddings",
)

if __name__ == "__main__":
    sys.exit(REFERENCE.main())
