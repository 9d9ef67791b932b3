"""BERT with and without heads."""

import functools
import re
from collections.abc import Callable
from typing import Any

import keras

from keras_transformer.interop.architecture import Architecture, Parameter, Parameters, dense, norm
from keras_transformer.models import (
    BERT,
    MaskedLanguageModel,
    Pretraining,
    SequenceClassifier,
    SpanClassifier,
    TokenClassifier,
)
from keras_transformer.models.problem_types import check_problem_type
from keras_transformer.relations import Full

_SETTINGS = {
    "vocabulary_size": "vocab_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "model_dim": "hidden_size",
    "hidden_dim": "intermediate_size",
    "max_length": "max_position_embeddings",
    "num_segments": "type_vocab_size",
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
    "activation": "hidden_act",
    "epsilon": "layer_norm_eps",
    "pad_id": "pad_token_id",
}
_OF_HEAD = ("num_classes", "problem_type", "pooling", "head_activation", "head_epsilon")
_TIED = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}


def encoder_block(name: str, attention: str, block: Any) -> Parameters:
    """Yield the parameters of a block without its norms, with the names that BERT and ViT share."""
    for part in ("query", "key", "value"):
        yield from dense(
            f"{name}.attention.{attention}.{part}", getattr(block.attention, f"{part}_projection")
        )
    yield from dense(f"{name}.attention.output.dense", block.attention.output_projection)
    yield from dense(f"{name}.intermediate.dense", block.feed_forward.hidden)
    yield from dense(f"{name}.output.dense", block.feed_forward.output_projection)


def _encoder(prefix: str, encoder: BERT, pools: bool) -> Parameters:
    embeddings = f"{prefix}embeddings"
    yield f"{embeddings}.word_embeddings.weight", Parameter((encoder.embedding.embedding.embeddings,))
    yield f"{embeddings}.position_embeddings.weight", Parameter((encoder.positions.table,))
    yield f"{embeddings}.token_type_embeddings.weight", Parameter((encoder.segments.embeddings,))
    yield from norm(f"{embeddings}.LayerNorm", encoder.embedding_norm)
    for i, block in enumerate(encoder.blocks):
        name = f"{prefix}encoder.layer.{i}"
        yield from encoder_block(name, "self", block)
        yield from norm(f"{name}.attention.output.LayerNorm", block.attention_residual.norm)
        yield from norm(f"{name}.output.LayerNorm", block.feed_forward_residual.norm)
    if pools and encoder.pooler is not None:
        yield from dense(f"{prefix}pooler.dense", encoder.pooler)


def _masked(model: MaskedLanguageModel) -> Parameters:
    yield "cls.predictions.bias", Parameter((model.bias,))
    yield from dense("cls.predictions.transform.dense", model.transform)
    yield from norm("cls.predictions.transform.LayerNorm", model.norm)


def _pretraining(model: Pretraining) -> Parameters:
    yield from _masked(model.masked_language_model)
    yield from dense("cls.seq_relationship", model.next_sentence)


def _classifier(name: str, model: Any) -> Parameters:
    yield from dense(name, model.head)


def _parameters(head: Callable[[Any], Parameters] | None, pools: bool, model: Any) -> Parameters:
    yield from _encoder("" if head is None else "bert.", getattr(model, "encoder", model), pools)
    if head is not None:
        yield from head(model)


def _make(model: type[keras.Model], **arguments: Any) -> keras.Model:
    """Create an encoder and the model around it, with the same dtype."""
    of_head = {name: arguments.pop(name) for name in _OF_HEAD if name in arguments}
    dtype = {name: arguments[name] for name in ("dtype",) if name in arguments}
    return model(BERT(**arguments), **of_head, **dtype)


def _describe(model: Any) -> dict[str, Any]:
    of_head = {name: getattr(model, name) for name in _OF_HEAD if hasattr(model, name)}
    return {**model.encoder.get_config(), **of_head}


def count_labels(config: dict[str, Any]) -> dict[str, Any]:
    """Add the number of labels, by default the length of `id2label`, or 2 without it."""
    labels = config.get("id2label")
    if not isinstance(labels, dict | None):
        raise ValueError(f"`config.json` must have a dictionary as id2label. Received: id2label={labels!r}")
    return {**config, "num_labels": config.get("num_labels") or (len(labels) if labels else 2)}


def complete_classifier(config: dict[str, Any]) -> dict[str, Any]:
    """Add the number of labels and the problem type."""
    config = count_labels(config)
    problem_type = check_problem_type(config.get("problem_type"), config["num_labels"])
    return {**config, "problem_type": problem_type}


def _rename(name: str) -> str:
    """Map the legacy names gamma and beta to weight and bias."""
    return re.sub(r"gamma$", "weight", re.sub(r"beta$", "bias", name))


def _architecture(
    class_name: str,
    model: type[keras.Model],
    head: Callable[[Any], Parameters] | None,
    pools: bool,
    labels: bool,
) -> Architecture:
    return Architecture(
        model_type="bert",
        class_name=class_name,
        model=model,
        settings={
            **_SETTINGS,
            **({"num_classes": "num_labels"} if labels else {}),
            **({"problem_type": "problem_type"} if model is SequenceClassifier else {}),
        },
        fixed={
            "normalization": "post",
            "relation": keras.saving.serialize_keras_object(Full()),
            **({"pooling": "pooler"} if model is SequenceClassifier else {}),
            # `transformers` takes them from the encoder.
            **({"head_activation": None, "head_epsilon": None} if model is MaskedLanguageModel else {}),
        },
        defaults={"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "layer_norm_eps": 1e-12},
        required={"is_decoder": False, "add_cross_attention": False, "tie_word_embeddings": True},
        parameters=functools.partial(_parameters, head, pools),
        ignored=r"position_ids$" if pools else r"position_ids$|pooler\.dense\.|seq_relationship\.",
        tied=_TIED if head in (_masked, _pretraining) else {},
        complete=complete_classifier if model is SequenceClassifier else count_labels if labels else dict,
        present={"pooler": "pooler.dense.weight"} if head is None else {},
        make=None if head is None else functools.partial(_make, model),
        describe=(lambda model: model.get_config()) if head is None else _describe,
        rename=_rename,
    )


_classes = functools.partial(_classifier, "classifier")
ARCHITECTURES = (
    _architecture("BertForPreTraining", Pretraining, _pretraining, pools=True, labels=False),
    _architecture("BertForMaskedLM", MaskedLanguageModel, _masked, pools=False, labels=False),
    _architecture("BertForSequenceClassification", SequenceClassifier, _classes, pools=True, labels=True),
    _architecture("BertForTokenClassification", TokenClassifier, _classes, pools=False, labels=True),
    _architecture(
        "BertForQuestionAnswering",
        SpanClassifier,
        functools.partial(_classifier, "qa_outputs"),
        pools=False,
        labels=False,
    ),
    _architecture("BertModel", BERT, None, pools=True, labels=False),
)
