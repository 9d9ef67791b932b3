"""Compare scores of the `CrossEncoder` of `sentence-transformers` and of this package, for folders that it writes.

The library saves models with random weights and one label, of each family of encoders, with a sigmoid and without, in
the folder layout of its versions, and reads each folder again. It scores pairs of short, long and odd texts, which are
truncated. Its scores are compared with those of the pipeline of `pipelines.from_hugging_face`, the SavedModel,
`keras_transformer_serving`, and the ONNX graph with the library's ids; its order of the texts with that of `rank`.

    .venv-bench/bin/python benchmarks/parity/cross_encoders.py            # --help lists the options
"""

import dataclasses
import json
import os
import pathlib
import sys
import tempfile

os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("TF2ONNX_CATCH_ERRORS", "FALSE")  # as in the Makefile: it converts faster

import numpy as np
import onnxruntime
import tensorflow as tf
import torch
from sentence_embeddings import FAMILIES, MAX_LENGTH, passed_tokenizer, texts_to_embed, write_encoder
from sentence_transformers import CrossEncoder

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import references

import keras_transformer_serving as serving
from keras_transformer import export, pipelines

LAYOUTS = ("newest", "config.json", "legacy", "unnamed")


@dataclasses.dataclass(frozen=True)
class Case:
    """A folder: the family of the encoder, the activation, and where it is written."""

    family: str = "BERT"
    activation: type[torch.nn.Module] = torch.nn.Sigmoid
    layout: str = "newest"
    size: str = "small"
    cased: bool = False


CASES = {
    "as bge-reranker: XLM-R whose files do not name the library": Case("XLM-R", layout="unnamed"),
    "without sigmoid, legacy layout": Case(activation=torch.nn.Identity, layout="legacy"),
    **{f"family {name}": Case(name) for name in FAMILIES if name != "BERT with XLM-R's tokenizer"},
    "as ms-marco-MiniLM: without sigmoid, config.json": Case(
        activation=torch.nn.Identity, layout="config.json", size="mini"
    ),
}


def write(case: Case, folder: pathlib.Path, seed: int) -> None:
    """Save a model with the library."""
    write_encoder(case, folder / "encoder", seed, "ForSequenceClassification", num_labels=1)
    model = CrossEncoder(
        str(folder / "encoder"), device="cpu", max_length=MAX_LENGTH, activation_fn=case.activation()
    )
    model.save_pretrained(str(folder / "it"))
    if case.layout == "newest":
        return
    for name in ("modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"):
        (folder / "it" / name).unlink()
    name = f"{case.activation.__module__}.{case.activation.__name__}"
    settings = {
        "config.json": {"sentence_transformers": {"activation_fn": name, "version": "4.1.0"}},
        "legacy": {"sbert_ce_default_activation_function": name},
        "unnamed": {},
    }
    path = folder / "it" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **settings[case.layout]}))


def compare(case: Case, seed: int) -> references.Figures:
    """Return the largest difference of a score for each way of computing the scores here."""
    texts = texts_to_embed()
    queries = texts[::-1]
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        write(case, folder, seed)
        theirs = CrossEncoder(str(folder / "it"), device="cpu")
        pairs = list(zip(queries, texts, strict=True))
        expected = theirs.predict(pairs)
        options = passed_tokenizer(case, folder / "encoder")
        if case.layout == "unnamed":
            options["pipeline"] = pipelines.Reranking
        ours = pipelines.from_hugging_face(folder / "it", **options)
        differences = {"pipeline": ours(queries, texts, truncate=True) - expected}
        truncating = pipelines.from_hugging_face(folder / "it", long_texts="truncate", **options)
        export.bundle(truncating, folder / "export", name="it", precisions=("float32",))
        signatures = tf.saved_model.load(str(folder / "export" / "saved_model" / "it" / "1")).signatures
        found = signatures["serving_default"](query=tf.constant(queries), text=tf.constant(texts))
        differences["SavedModel"] = found["score"].numpy() - expected
        served = serving.load(folder / "export")
        differences["keras_transformer_serving"] = served(queries, texts) - expected
        (graph,) = (folder / "export" / "onnx").rglob("model.onnx")
        session = onnxruntime.InferenceSession(str(graph))
        names = {each.name for each in session.get_inputs()}
        features = {
            name: tensor.numpy() for name, tensor in theirs.preprocess(pairs).items() if name in names
        }
        (scores,) = session.run(["scores"], features)
        differences["ONNX graph, the library's ids"] = scores - expected
        ranked = [each["corpus_id"] for each in theirs.rank(texts[0], texts[:12])]
        results = {name: float(np.abs(each).max()) for name, each in differences.items()}
        return {
            **results,
            "relative": max(results.values()) / max(1.0, float(np.abs(expected).max())),
            "ranking": [each.text_index for each in ours.rank(texts[0], texts[:12], truncate=True)] == ranked,
            "scores": f"{len(texts)} pairs, from {expected.min():.3f} to {expected.max():.3f}",
        }


REFERENCE = references.Reference(
    __file__,
    __doc__,
    CASES,
    lambda run: compare(run.case, run.seed),
    limits={"relative": 1e-5},
    equal=("ranking",),
    packages=("sentence-transformers",),
    name="parity_cross_encoders",
)

if __name__ == "__main__":
    sys.exit(REFERENCE.main())
