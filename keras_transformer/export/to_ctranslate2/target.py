"""The target "ctranslate2": models that CTranslate2 runs, with this package and without it."""

import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras_transformer_serving as serving
from keras_transformer import models
from keras_transformer.export import card
from keras_transformer.export.bundle_writer import check_pipeline
from keras_transformer.export.targets import ExportTarget
from keras_transformer.export.to_ctranslate2.checks import error
from keras_transformer.export.to_ctranslate2.families import SPECIFICATIONS
from keras_transformer.export.to_ctranslate2.heads import encoder_of, head_of
from keras_transformer.export.to_ctranslate2.speech import speech_of
from keras_transformer.export.to_ctranslate2.weights import Weights
from keras_transformer_serving.ctranslate2_engines.arrays import Arrays
from keras_transformer_serving.ctranslate2_engines.encoder import HEAD
from keras_transformer_serving.ctranslate2_engines.generation import Search
from keras_transformer_serving.ctranslate2_engines.loading import CTRANSLATE2, ctranslate2_package
from keras_transformer_serving.ctranslate2_engines.whisper import END, NO_TIMESTAMPS, SPEECH, START
from keras_transformer_serving.graph_files import BY_DEFAULT, FLOAT32


class CTranslate2(ExportTarget):
    """A model of CTranslate2, in each precision.

    Weights of the `Transformer`, `T5`, `GPT`, `Llama` and `Gemma` families, of `BERT` and of `Whisper` are written by
    CTranslate2's own specifications. Its vocabulary has the tokenizer's pieces. Beside the model of an encoder is its
    head, and beside a Whisper the filters of its features, which serving computes in NumPy.

    Args:
        precisions: the precisions, each a model of its own; see `onnx`.
    """

    name, tags, options = CTRANSLATE2, ("ctranslate2",), ("precisions",)

    def __init__(self, precisions: Sequence[str] | None = (FLOAT32,)) -> None:
        self.precisions = precisions

    def check(self, pipeline: Any) -> None:
        """Raise unless CTranslate2 is installed, and has what the model and the search need."""
        check_pipeline(pipeline)
        self.check_float32(pipeline, "CTranslate2")
        self.check_precisions(FLOAT32)
        ctranslate2_package()
        _check_model(pipeline)
        if pipeline.generates:
            Search.of(pipeline.export_config())
        _beside(pipeline)
        specification(pipeline)

    def write(self, pipeline: Any, folder: pathlib.Path) -> None:
        """Write the model in each precision; a float16 or int8 model is in the folder of its name."""
        for precision in self.precisions or (FLOAT32, *BY_DEFAULT):
            place = folder if precision == FLOAT32 else folder / precision
            write_model(pipeline, place, precision)
        for name, arrays in _beside(pipeline).items():
            arrays.write(folder, name)

    @classmethod
    def signatures(cls, folder: pathlib.Path) -> dict[str, Any]:
        """Return the inputs and outputs of a model, unless it generates texts from texts or prompts."""
        part = serving.PartFiles.of_folder(folder)
        for name in (HEAD, SPEECH):
            if f"{name}.json" in part.names:
                arrays = Arrays.read(part, name)
                return {"model": cls.signature(arrays.tensors("inputs"), arrays.tensors("outputs"))}
        return {}

    @classmethod
    def card(cls, name: str, pipeline: Any, reports: Mapping[str, Any]) -> Iterator[str]:
        """Yield how to run the model with CTranslate2."""
        yield "## CTranslate2\n"
        yield "In this folder, with `keras-transformer-serving[ctranslate2]` and without TensorFlow:\n"
        yield "```python\nimport keras_transformer_serving as serving\n"
        yield f'model = serving.load(".", engine="{cls.name}")'
        config = pipeline.export_config()
        if pipeline.generates:
            yield f"{card.call(pipeline, reports[CTRANSLATE2])}\n```\n"
            kind = "Generator" if config["start_id"] is None else "Translator"
            note = "whose vocabulary has the pieces of the tokenizer"
        else:
            yield f"{card.forward_call(pipeline, reports[CTRANSLATE2]['signatures']['model'])}\n```\n"
            is_speech = isinstance(pipeline.model, models.Whisper)
            kind = "models.Whisper" if is_speech else "Encoder"
            note = (
                "whose inputs are features"
                if is_speech
                else f"which gives the hidden states; `{HEAD}.npz` is the head"
            )
        yield f"`ctranslate2.{kind}` loads the folder `{cls.name}`, {note}.\n"


def write_model(pipeline: Any, folder: pathlib.Path, precision: str = FLOAT32) -> None:
    """Write a model of CTranslate2: `model.bin`, `config.json` and the vocabulary.

    Args:
        pipeline: a pipeline that `CTranslate2.check` accepts.
        folder: the folder to write into.
        precision: "float32", "float16" or "int8", that of the matrices.
    """
    spec = specification(pipeline)
    spec.optimize(None if precision == FLOAT32 else precision)
    folder.mkdir(exist_ok=True)
    spec.save(str(folder))


def specification(pipeline: Any) -> Any:
    """Return the specification of a pipeline's model, with its weights and its vocabulary.

    Raises:
        ValueError: if CTranslate2 does not have a part of the model.
    """
    model, weights = encoder_of(pipeline.model), Weights()
    size = pipeline.max_source_tokens + pipeline.max_new_tokens if pipeline.generates else model.max_length
    spec = SPECIFICATIONS[type(model)](model, weights, size)
    _set_vocabulary(spec, pipeline)
    if not isinstance(model, models.Whisper):  # whose norms have CTranslate2's epsilon
        spec.config.layer_norm_epsilon = weights.epsilon()
    spec.validate()
    return spec


def _check_model(pipeline: Any) -> None:
    """Raise a ValueError unless CTranslate2 has models of this class."""
    model = encoder_of(pipeline.model)
    if type(model) not in SPECIFICATIONS:
        raise error(
            f"one of {', '.join(kind.__name__ for kind in SPECIFICATIONS)}", f"a {type(model).__name__}"
        )


def _beside(pipeline: Any) -> dict[str, Arrays]:
    """Return what is computed beside the model, by the name of its files.

    Raises:
        ValueError: if there is no NumPy for the head, or CTranslate2 does not have the search of speech.
    """
    if pipeline.generates:
        return {}
    if isinstance(pipeline.model, models.Whisper):
        return {SPEECH: speech_of(pipeline)}
    return {HEAD: head_of(pipeline)}


def _set_vocabulary(spec: Any, pipeline: Any) -> None:
    """Register the pieces of the tokenizer, made unique, and the special tokens."""
    config = pipeline.export_config()
    size = config["vocabulary_size"]
    pieces = vocabulary(pipeline, size)
    start_id, end_id = config["start_id"], config["end_id"]
    unknown_id = getattr(pipeline.tokenizer, "unknown_id", -1)
    if isinstance(pipeline.model, models.Whisper):
        for id_, token in ((start_id, START), (end_id, END), (pipeline.prefix_ids[-1], NO_TIMESTAMPS)):
            pieces[id_] = token
        spec.config.suppress_ids = speech_of(pipeline).settings["suppressed_ids"]
        spec.config.suppress_ids_begin = []
        spec.config.lang_ids = sorted(pipeline.languages.values())
    else:
        end = pieces[0 if end_id is None else end_id]  # an encoder has none
        spec.config.eos_token = end
        spec.config.bos_token = end if start_id is None else pieces[start_id]
        spec.config.unk_token = pieces[unknown_id] if 0 <= unknown_id < size else end
    if start_id is None or not pipeline.generates:
        spec.register_vocabulary(pieces)
        return
    spec.config.decoder_start_token = pieces[start_id]
    spec.config.add_source_eos = True
    spec.register_source_vocabulary(pieces)
    spec.register_target_vocabulary(pieces)


def vocabulary(pipeline: Any, size: int) -> list[str]:
    """Return a different string for each id: its piece, where that is not empty and no earlier id has it."""
    config, found = pipeline.export_config(), list[str]()
    if serving.reads_text(config):
        found = [*serving.tokenizer_of(pipeline.tokenizer.model_bytes, config).pieces][:size]
    pieces = dict[str, int]()
    for id_ in range(size):
        piece = found[id_] if id_ < len(found) else ""
        pieces[piece if piece and piece not in pieces else f"<id_{id_}>"] = id_
    return [*pieces]
