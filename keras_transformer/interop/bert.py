"""BERT and its relatives with and without heads: RoBERTa, XLM-RoBERTa, CamemBERT, DistilBERT, ALBERT."""

import dataclasses
import functools
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
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

# The activations f of gated networks, which are those of the heads of masked language models by default.
_GATES = {"reglu": "relu", "geglu": "gelu", "geglu_tanh": "gelu_tanh", "swiglu": "silu"}
_OF_HEAD = ("num_classes", "problem_type", "pooling", "head_activation", "head_epsilon", "prediction_head")


@dataclasses.dataclass(frozen=True)
class EncoderNames:
    """The names of parameters in a family.

    Attributes:
        prefix: the prefix of the encoder's in models with a head.
        words, positions, segments, embedding_norm, projection: of the embeddings.
        block: the prefix of a block's, with its number as i.
        query, key, value, output, attention_norm, hidden, feed_forward, norm: in a block.
        pooler: in the encoder.
        classifier_pooler: in a classifier of texts, with the prefix; by default the encoder's.
        classifier: of a classifier of texts.
        transform, transform_norm, bias, decoder: of a masked language model.
        unused_positions: the number of rows before the first position.
    """

    prefix: str
    words: str = "embeddings.word_embeddings"
    positions: str = "embeddings.position_embeddings"
    segments: str = "embeddings.token_type_embeddings"
    embedding_norm: str = "embeddings.LayerNorm"
    projection: str = ""
    block: str = "encoder.layer.{i}"
    query: str = "attention.self.query"
    key: str = "attention.self.key"
    value: str = "attention.self.value"
    output: str = "attention.output.dense"
    attention_norm: str = "attention.output.LayerNorm"
    hidden: str = "intermediate.dense"
    feed_forward: str = "output.dense"
    norm: str = "output.LayerNorm"
    pooler: str = "pooler.dense"
    classifier_pooler: str | None = None
    classifier: str = "classifier"
    transform: str = "lm_head.dense"
    transform_norm: str = "lm_head.layer_norm"
    bias: str = "lm_head.bias"
    decoder: str = "lm_head.decoder"
    unused_positions: int = 0

    @property
    def tied(self) -> dict[str, str]:
        """The parameters of a masked language model that are equal to others."""
        copies = {
            f"{self.decoder}.weight": f"{self.prefix}{self.words}.weight",
            f"{self.decoder}.bias": self.bias,
        }
        return {name: other for name, other in copies.items() if name != other}


def _encoder(names: EncoderNames, prefix: str, encoder: BERT) -> Parameters:
    """Yield the parameters of an encoder but for its pooler."""
    yield f"{prefix}{names.words}.weight", Parameter((encoder.embedding.embedding.embeddings,))
    table = Parameter((encoder.positions.table,), unused_rows=names.unused_positions)
    yield f"{prefix}{names.positions}.weight", table
    if encoder.segments is not None:
        yield f"{prefix}{names.segments}.weight", Parameter((encoder.segments.embeddings,))
    yield from norm(prefix + names.embedding_norm, encoder.embedding_norm)
    if encoder.projection is not None:
        yield from dense(prefix + names.projection, encoder.projection)
    for i, block in enumerate(encoder.blocks[:1] if encoder.shared_blocks else encoder.blocks):
        name = f"{prefix}{names.block.format(i=i)}"
        yield from block_parameters(name, names, block)


def block_parameters(name: str, names: EncoderNames, block: Any) -> Parameters:
    """Yield the parameters of a block."""
    for part in ("query", "key", "value", "output"):
        yield from dense(f"{name}.{getattr(names, part)}", getattr(block.attention, f"{part}_projection"))
    yield from dense(f"{name}.{names.hidden}", block.feed_forward.hidden)
    yield from dense(f"{name}.{names.feed_forward}", block.feed_forward.output_projection)
    yield from norm(f"{name}.{names.attention_norm}", block.attention_residual.norm)
    yield from norm(f"{name}.{names.norm}", block.feed_forward_residual.norm)


def _pooler(names: EncoderNames, prefix: str, encoder: BERT, is_classifier: bool = False) -> Parameters:
    if encoder.pooler is not None:
        own = names.classifier_pooler if is_classifier else None
        yield from dense(prefix + names.pooler if own is None else own, encoder.pooler)


def _masked(names: EncoderNames, model: MaskedLanguageModel) -> Parameters:
    yield names.bias, Parameter((model.bias,))
    yield from dense(names.transform, model.transform)
    yield from norm(names.transform_norm, model.norm)


def _bare(names: EncoderNames, model: BERT) -> Parameters:
    yield from _encoder(names, "", model)
    yield from _pooler(names, "", model)


def _pretraining(names: EncoderNames, model: Pretraining) -> Parameters:
    yield from _encoder(names, names.prefix, model.encoder)
    yield from _pooler(names, names.prefix, model.encoder)
    yield from _masked(names, model.masked_language_model)
    yield from dense("cls.seq_relationship", model.next_sentence)


def _masked_language_model(names: EncoderNames, model: MaskedLanguageModel) -> Parameters:
    yield from _encoder(names, names.prefix, model.encoder)
    yield from _masked(names, model)


def _sequence_classifier(names: EncoderNames, model: SequenceClassifier) -> Parameters:
    yield from _encoder(names, names.prefix, model.encoder)
    yield from _pooler(names, names.prefix, model.encoder, is_classifier=True)
    yield from dense(names.classifier, model.head)


def _token_classifier(names: EncoderNames, model: TokenClassifier) -> Parameters:
    yield from _encoder(names, names.prefix, model.encoder)
    yield from dense("classifier", model.head)


def _span_classifier(names: EncoderNames, model: SpanClassifier) -> Parameters:
    yield from _encoder(names, names.prefix, model.encoder)
    yield from dense("qa_outputs", model.head)


# The end of the class's name in `transformers`, our class, and its parameters.
_MODELS: dict[str, tuple[type[keras.Model], Any]] = {
    "ForPreTraining": (Pretraining, _pretraining),
    "ForMaskedLM": (MaskedLanguageModel, _masked_language_model),
    "ForSequenceClassification": (SequenceClassifier, _sequence_classifier),
    "ForTokenClassification": (TokenClassifier, _token_classifier),
    "ForQuestionAnswering": (SpanClassifier, _span_classifier),
    "Model": (BERT, _bare),
}


def make_with_head(encoder: type[keras.Model], model: type[keras.Model], **arguments: Any) -> keras.Model:
    """Create an encoder and the model around it, if it is not the encoder itself, with the same dtype."""
    of_head = {name: arguments.pop(name) for name in _OF_HEAD if name in arguments}
    dtype = {name: arguments[name] for name in ("dtype",) if name in arguments}
    made = encoder(**arguments)
    return made if model is encoder else model(made, **of_head, **dtype)


def describe_with_head(model: Any) -> dict[str, Any]:
    """Return the arguments of an encoder and of the model around it, with the defaults of a prediction head."""
    config = model.get_config()
    described = getattr(model, "encoder", model).get_config()
    of_head = {name: config[name] for name in _OF_HEAD if name in config}
    if "head_activation" in of_head and of_head.get("prediction_head", True):
        activation = described["activation"]
        of_head["head_activation"] = of_head["head_activation"] or _GATES.get(activation, activation)
    if of_head.get("head_epsilon") == described["epsilon"]:
        of_head["head_epsilon"] = None
    return {**described, **of_head}


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


_EMPTY: Mapping[str, Any] = MappingProxyType({})


def _family(
    model_type: str,
    class_name: str,
    names: EncoderNames,
    settings: Mapping[str, str],
    *,
    fixed: Mapping[str, Any] = _EMPTY,
    defaults: Mapping[str, Any],
    required: Mapping[str, Any] = _EMPTY,
    classifier: Mapping[str, Any] = _EMPTY,
    masked: Mapping[str, Any] = _EMPTY,
    offsets: Mapping[str, int] = _EMPTY,
    has_pretraining: bool = False,
    has_pooler: bool = True,
) -> Iterator[Architecture]:
    """Yield an encoder's architecture with each head and without one.

    Args:
        model_type: the `model_type` of `config.json`.
        class_name: the beginning of the classes' names in `transformers`.
        names: the names of parameters.
        settings: the settings of the encoder, as in `Architecture`.
        fixed: arguments of the encoder with one value.
        defaults: default values of settings.
        required: settings with one value.
        classifier: arguments of a classifier's encoder with one value.
        masked: arguments of a masked language model with one value.
        offsets: as in `Architecture`.
        has_pretraining: whether there is a model with both of BERT's heads.
        has_pooler: whether the encoder without head may have a pooler.
    """
    for suffix, (model, parameters) in _MODELS.items():
        if model is Pretraining and not has_pretraining:
            continue
        bare, is_classifier = model is BERT, model is SequenceClassifier
        labels = model in (SequenceClassifier, TokenClassifier)
        pools = bare or is_classifier or model is Pretraining
        yield Architecture(
            model_type=model_type,
            class_name=class_name + suffix,
            model=model,
            settings={
                **settings,
                **({"num_classes": "num_labels"} if labels else {}),
                **({"problem_type": "problem_type"} if is_classifier else {}),
                # `transformers` takes it from the encoder.
                **(
                    {"head_activation": settings["activation"]}
                    if model is MaskedLanguageModel and not masked
                    else {}
                ),
            },
            fixed={
                "normalization": "post",
                "relation": keras.saving.serialize_keras_object(Full()),
                **fixed,
                **({"pooling": "pooler", **classifier} if is_classifier else {}),
                **({"pooler": False} if bare and not has_pooler else {}),
                **({"head_epsilon": None, **masked} if model is MaskedLanguageModel else {}),
                **({"prediction_head": False} if model in (TokenClassifier, SpanClassifier) else {}),
            },
            defaults=defaults,
            required={"tie_word_embeddings": True, **required},
            parameters=functools.partial(parameters, names),
            ignored=r"position_ids$" if pools else r"position_ids$|pooler\.dense\.|seq_relationship\.",
            tied=names.tied if model in (MaskedLanguageModel, Pretraining) else {},
            complete=complete_classifier if is_classifier else count_labels if labels else dict,
            present={"pooler": f"{names.pooler}.weight"} if bare and has_pooler else {},
            make=functools.partial(make_with_head, BERT, model),
            describe=describe_with_head,
            rename=_rename,
            offsets=offsets,
            encoder=BERT,
            base=names.prefix,
            has_head=not bare,
        )


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
_DEFAULTS = {
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "type_vocab_size": 2,
}
_ENCODER_ONLY = {
    "is_decoder": False,
    "add_cross_attention": False,
    "position_embedding_type": "absolute",
}
_NOT_ALBERT = {"shared_blocks": False, "pooler_activation": "tanh"}
_BERT_NAMES = EncoderNames(
    prefix="bert.",
    transform="cls.predictions.transform.dense",
    transform_norm="cls.predictions.transform.LayerNorm",
    bias="cls.predictions.bias",
    decoder="cls.predictions.decoder",
)
_ROBERTA_NAMES = EncoderNames(
    prefix="roberta.",
    classifier_pooler="classifier.dense",
    classifier="classifier.out_proj",
    unused_positions=2,  # positions begin after the padding id
)
_roberta = functools.partial(
    _family,
    names=_ROBERTA_NAMES,
    settings={
        **{name: setting for name, setting in _SETTINGS.items() if name != "pad_id"},
        "embedding_dim": "hidden_size",
    },
    fixed={"pad_id": 1, **_NOT_ALBERT},
    defaults=_DEFAULTS,
    masked={"head_activation": "gelu"},  # whatever the activation of the encoder
    required={"pad_token_id": 1, **_ENCODER_ONLY},
    offsets={"max_length": _ROBERTA_NAMES.unused_positions},
)
_distilbert = _family(
    "distilbert",
    "DistilBert",
    EncoderNames(
        prefix="distilbert.",
        block="transformer.layer.{i}",
        query="attention.q_lin",
        key="attention.k_lin",
        value="attention.v_lin",
        output="attention.out_lin",
        attention_norm="sa_layer_norm",
        hidden="ffn.lin1",
        feed_forward="ffn.lin2",
        norm="output_layer_norm",
        classifier_pooler="pre_classifier",
        transform="vocab_transform",
        transform_norm="vocab_layer_norm",
        bias="vocab_projector.bias",
        decoder="vocab_projector",
    ),
    {
        "vocabulary_size": "vocab_size",
        "num_layers": "n_layers",
        "num_heads": "n_heads",
        "model_dim": "dim",
        "hidden_dim": "hidden_dim",
        "max_length": "max_position_embeddings",
        "dropout": "dropout",
        "attention_dropout": "attention_dropout",
        "activation": "activation",
        "pad_id": "pad_token_id",
        "embedding_dim": "dim",
    },
    fixed={"num_segments": 0, "epsilon": 1e-12, "shared_blocks": False},
    defaults={"dropout": 0.1, "attention_dropout": 0.1, "activation": "gelu", "pad_token_id": 0},
    required={"sinusoidal_pos_embds": False},
    classifier={"pooler_activation": "relu"},
    has_pooler=False,
)
_albert = _family(
    "albert",
    "Albert",
    EncoderNames(
        prefix="albert.",
        projection="encoder.embedding_hidden_mapping_in",
        block="encoder.albert_layer_groups.0.albert_layers.0",
        query="attention.query",
        key="attention.key",
        value="attention.value",
        output="attention.dense",
        attention_norm="attention.LayerNorm",
        hidden="ffn",
        feed_forward="ffn_output",
        norm="full_layer_layer_norm",
        pooler="pooler",
        transform="predictions.dense",
        transform_norm="predictions.LayerNorm",
        bias="predictions.bias",
        decoder="predictions.decoder",
    ),
    {**_SETTINGS, "embedding_dim": "embedding_size"},
    fixed={"shared_blocks": True, "pooler_activation": "tanh"},
    defaults={
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "hidden_act": "gelu_new",
        "layer_norm_eps": 1e-12,
        "pad_token_id": 0,
    },
    required={"num_hidden_groups": 1, "inner_group_num": 1, "position_embedding_type": "absolute"},
)
ARCHITECTURES = (
    *_roberta("roberta", "Roberta"),
    *_roberta("xlm-roberta", "XLMRoberta"),
    *_roberta("camembert", "Camembert"),
    *_distilbert,
    *_albert,
    *_family(
        "bert",
        "Bert",
        _BERT_NAMES,
        {**_SETTINGS, "embedding_dim": "hidden_size"},
        fixed=_NOT_ALBERT,
        defaults={**_DEFAULTS, "pad_token_id": 0},
        required=_ENCODER_ONLY,
        has_pretraining=True,
    ),
)
