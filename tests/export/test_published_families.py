"""Exports of published architectures, also without TensorFlow, have the answers of the pipeline."""

import pathlib
import string

import pytest

import keras_transformer_serving as serving
from keras_transformer import export, interop, models, pipelines, text

pytest.importorskip("tf2onnx")

FOLDERS = pathlib.Path(__file__).parents[1] / "interop" / "folders"
CHARACTERS = string.ascii_lowercase + string.digits + ".,;:!"
TEXTS = ["x y z w", "w . w", "x " * 9]
FAMILIES = (
    *(f"{name}ForSequenceClassification" for name in ("Albert", "DistilBert", "ModernBert", "Roberta")),
    *(f"{name}ForConditionalGeneration" for name in ("Bart", "Pegasus", "MT5")),
    *(f"{name}ForCausalLM" for name in ("Qwen3", "SmolLM3", "Phi3", "Gemma2")),
)


def tokenizer_of(model):
    """Return a tokenizer of single characters with the special ids of a model."""
    names = {"pad": "pad_id", "end": "end_id", "start": "start_id"}
    ids = {role: getattr(model, name, None) for role, name in names.items()}
    free = iter(id_ for id_ in range(model.vocabulary_size) if id_ not in ids.values())
    ids = {role: next(free) if id_ is None else id_ for role, id_ in ids.items()}
    ids["unknown"] = next(free)
    pieces = list(CHARACTERS)
    for id_ in ids.values():
        pieces[id_] = f"[{id_}]"
    return text.WordPieceTokenizer(pieces, special_tokens={role: pieces[id_] for role, id_ in ids.items()})


def pipeline_of(name):
    """Return a pipeline of the model of a folder."""
    model = interop.from_hugging_face(FOLDERS / name)
    tokenizer = tokenizer_of(getattr(model, "encoder", model))
    if isinstance(model, models.SequenceClassifier):
        return pipelines.TextClassification(model, tokenizer)
    kind = pipelines.TextToText if model.is_encoder_decoder else pipelines.TextGeneration
    return kind(model, tokenizer, max_new_tokens=6)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_exports_have_the_answers_of_the_pipeline(name, tmp_path):
    pipeline, folder = pipeline_of(name), tmp_path / "export"
    export.bundle(pipeline, folder, precisions=["float32"], texts=TEXTS)
    assert export.verify(folder)  # compares the SavedModel and the graphs
    assert serving.load(folder)(TEXTS) == pipeline(TEXTS)
