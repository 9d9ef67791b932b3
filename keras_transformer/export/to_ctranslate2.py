"""The target "ctranslate2": models that CTranslate2 runs, with this package and without it."""

import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np

import keras_transformer_serving as serving
from keras_transformer import layers, models, relations
from keras_transformer.export import card
from keras_transformer.export.bundle_writer import check_pipeline
from keras_transformer.export.targets import ExportTarget
from keras_transformer.layers.feed_forward import activation_function
from keras_transformer.layers.positions import rotary_scaling
from keras_transformer.ops.scores import ScaledDotProduct
from keras_transformer_serving.ctranslate2_target import CTRANSLATE2, Search, ctranslate2_package
from keras_transformer_serving.graph_files import BY_DEFAULT, FLOAT32

_LEAST_POSITIONS = 1024  # of a table of sinusoidal positions
_OF_BLOCKS = {  # arguments that blocks may differ in
    *("rotary_dim", "rotary_interleave", "rotary_base", "rotary_scaling_type", "rotary_scaling_factor"),
    "original_max_position_embeddings",
}


class CTranslate2(ExportTarget):
    """A model of CTranslate2, in each precision.

    Weights of the `Transformer`, `T5`, `GPT`, `Llama` and `Gemma` families are written by CTranslate2's own
    specifications. Its vocabulary has the tokenizer's pieces.

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
        if not pipeline.generates:
            raise ValueError(
                "`pipeline` must generate texts for CTranslate2, such as a `TextToText`. "
                f"Received: a {type(pipeline).__name__}"
            )
        Search.of(pipeline.export_config())
        specification(pipeline)

    def write(self, pipeline: Any, folder: pathlib.Path) -> None:
        """Write the model in each precision; a float16 or int8 model is in the folder of its name."""
        for precision in self.precisions or (FLOAT32, *BY_DEFAULT):
            place = folder if precision == FLOAT32 else folder / precision
            write_model(pipeline, place, precision)

    @classmethod
    def card(cls, name: str, pipeline: Any, reports: Mapping[str, Any]) -> Iterator[str]:
        """Yield how to run the model with CTranslate2."""
        yield "## CTranslate2\n"
        yield "In this folder, with `pip install 'keras-transformer-serving[ctranslate2]'` and no TensorFlow:\n"
        yield "```python\nimport keras_transformer_serving as serving\n"
        yield f'model = serving.load(".", engine="{cls.name}")'
        yield f"{card.call(pipeline, reports[CTRANSLATE2])}\n```\n"
        kind = "Generator" if pipeline.export_config()["start_id"] is None else "Translator"
        yield f"`ctranslate2.{kind}` loads the folder `{cls.name}`, whose vocabulary has the pieces of the tokenizer.\n"


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
    model = pipeline.model
    create = _SPECIFICATIONS.get(type(model))
    if create is None:
        known = ", ".join(kind.__name__ for kind in _SPECIFICATIONS)
        raise _error(f"one of {known}", f"a {type(model).__name__}")
    weights = _Weights()
    spec = create(model, weights, pipeline.max_source_tokens + pipeline.max_new_tokens)
    _set_vocabulary(spec, pipeline)
    spec.config.layer_norm_epsilon = weights.epsilon()
    spec.validate()
    return spec


def _error(expectation: str, received: str) -> ValueError:
    return ValueError(
        f"`pipeline` must have a model that CTranslate2 runs, with {expectation}. Received: {received}"
    )


def _require(value: Any, expectation: str, received: Any) -> None:
    if not value:
        raise _error(expectation, str(received))


class _Weights:
    """Copies weights of layers into specifications, and refuses layers that CTranslate2 does not have."""

    def __init__(self) -> None:
        self._epsilons = set[float]()

    def epsilon(self) -> float:
        """Return the epsilon of all norms."""
        _require(len(self._epsilons) == 1, "one epsilon for all norms", sorted(self._epsilons))
        return next(iter(self._epsilons))

    def linear(self, target: Any, layer: keras.layers.Dense) -> None:
        """Copy a dense layer."""
        target.weight = _array(layer.kernel).T
        if layer.use_bias:
            target.bias = _array(layer.bias)

    def norm(self, target: Any, layer: Any) -> None:
        """Copy a norm; one without a bias has zeros."""
        self._epsilons.add(float(layer.epsilon))
        if isinstance(layer, keras.layers.RMSNormalization):
            target.gamma = _array(layer.scale)
        else:
            target.gamma = _array(layer.gamma)
            target.beta = np.zeros_like(target.gamma) if layer.beta is None else _array(layer.beta)

    def attention(self, target: Any, layer: Any, is_cross: bool = False) -> None:
        """Copy the four projections, the scale and the norms of heads."""
        from ctranslate2.converters import utils
        from ctranslate2.specs import common_spec

        parts = [common_spec.LinearSpec() for _ in range(3)]
        projections = (layer.query_projection, layer.key_projection, layer.value_projection)
        for part, projection in zip(parts, projections, strict=True):
            self.linear(part, projection)
        fused = 1 if is_cross else 3
        utils.fuse_linear(target.linear[0], parts[:fused])
        if is_cross:
            utils.fuse_linear(target.linear[1], parts[1:])
        self.linear(target.linear[-1], layer.output_projection)
        if layer.score.scale is not None:
            target.queries_scale = np.float32(layer.score.scale)
        if layer.head_norm is not None:
            self.norm(target.q_norm, layer.query_norm)
            self.norm(target.k_norm, layer.key_norm)
        encoding = layer.position_encoding
        if isinstance(encoding, layers.RelativeBias):
            target.relative_attention_bias = _array(encoding.table)
            target.relative_attention_max_distance = np.int32(encoding.max_distance)
        scaling = getattr(encoding, "scaling", None)
        if isinstance(scaling, rotary_scaling.Llama3Scaling):
            target.rotary_low_freq_factor = np.float32(scaling.low_frequency_factor)
            target.rotary_high_freq_factor = np.float32(scaling.high_frequency_factor)
            # CTranslate2 reads it, but its specification has it for linear scaling only.
            vars(target)["rotary_scaling_factor"] = np.float32(scaling.factor)

    def block(self, target: Any, block: Any) -> None:
        """Copy a block of an encoder or decoder."""
        attention = getattr(block, block.sublayers[0])
        residual = getattr(block, f"{block.sublayers[0]}_residual")
        self.attention(target.self_attention, attention)
        feed_forward, feed_forward_residual = block.feed_forward, block.feed_forward_residual
        if residual.normalization == "sandwich":
            self.norm(target.input_layer_norm, residual.norm)
            self.norm(target.post_attention_layer_norm, residual.output_norm)
            self.norm(target.pre_feedforward_layer_norm, feed_forward_residual.norm)
            self.norm(target.post_feedforward_layer_norm, feed_forward_residual.output_norm)
        else:
            self.norm(target.self_attention.layer_norm, residual.norm)
            self.norm(target.ffn.layer_norm, feed_forward_residual.norm)
        if getattr(block, "cross_attention", None) is not None:
            self.attention(target.attention, block.cross_attention, is_cross=True)
            self.norm(target.attention.layer_norm, block.cross_attention_residual.norm)
        self.linear(target.ffn.linear_0, feed_forward.hidden)
        if feed_forward.gate is not None:
            self.linear(target.ffn.linear_0_noact, feed_forward.gate)
        self.linear(target.ffn.linear_1, feed_forward.output_projection)

    def stack(
        self, target: Any, blocks: Sequence[Any], embedding: Any, positions: Any, size: int, final_norm: Any
    ) -> None:
        """Copy an encoder or a decoder.

        Args:
            target: the specification.
            blocks: the blocks.
            embedding: the `TokenEmbedding`.
            positions: the encoding that is added to the embeddings, or None.
            size: the number of positions of an encoding without weights.
            final_norm: the norm of the output, or None.
        """
        embeddings = target.embeddings[0] if isinstance(target.embeddings, list) else target.embeddings
        embeddings.weight = _array(embedding.embedding.embeddings)
        target.scale_embeddings = embedding.scale
        if isinstance(positions, layers.LearnedPositions):
            target.position_encodings.encodings = _array(positions.table)
        elif positions is not None:
            numbers = np.arange(max(size, _LEAST_POSITIONS), dtype="int32")
            target.position_encodings.encodings = _array(positions.encode(numbers, embedding.model_dim))
        elif hasattr(target, "position_encodings"):  # by default sinusoidal ones
            zeros = np.zeros((max(size, _LEAST_POSITIONS), embedding.model_dim), np.float32)
            target.position_encodings.encodings = zeros
        if final_norm is not None:
            self.norm(target.layer_norm, final_norm)
        for layer, block in zip(target.layer, blocks, strict=True):
            self.block(layer, block)

    def projection(self, target: Any, embedding: Any, bias: Any = None) -> None:
        """Copy the output matrix of a `TokenEmbedding`, and the bias of the logits."""
        table = embedding.embedding
        target.projection.weight = (
            _array(table.embeddings) if embedding.tied else _array(table.reverse_embeddings).T
        )
        if bias is not None:
            target.projection.bias = _array(bias)
        if embedding.soft_cap is not None:
            target.final_logit_softcapping = np.float32(embedding.soft_cap)


def _array(tensor: Any) -> np.ndarray:
    """Return a tensor as float32, contiguous."""
    return np.ascontiguousarray(keras.ops.convert_to_numpy(tensor), np.float32)


def _stack(kind: Any, blocks: Sequence[Any], relation: relations.Relation, size: int, **options: Any) -> Any:
    """Return the specification of an encoder or decoder without weights.

    Args:
        kind: the class of the specification.
        blocks: the blocks, which may differ in rotary positions.
        relation: that of self-attention.
        size: the number of tokens of the longest text.
        **options: other arguments.
    """
    arguments = [{**_block_arguments(block, relation, size), **options} for block in blocks]
    first = arguments[0]
    for number, others in enumerate(arguments):
        names = {*first, *others} - _OF_BLOCKS
        different = [name for name in sorted(names) if others.get(name) != first.get(name)]
        _require(not different, "blocks of one kind", f"another {', '.join(different)} in block {number}")
    spec = kind(len(blocks), **first)
    spec.layer = [layer for each in arguments for layer in kind(1, **each).layer]
    return spec


def _block_arguments(block: Any, relation: relations.Relation, size: int) -> dict[str, Any]:
    """Return the arguments that describe a block, after checking that CTranslate2 has all of it."""
    names = [name for name in block.sublayers if getattr(block, name) is not None]
    for name in names[:-1]:
        attention = getattr(block, name)
        _require(
            type(attention) is layers.MultiHeadAttention,
            "a `MultiHeadAttention` in each block",
            f"a {type(attention).__name__}",
        )
        expected = relations.Full() if name == "cross_attention" else relation
        # CTranslate2's windows move rotary positions.
        is_causal = expected == relations.Causal() and _window(attention.relation) >= size
        _require(
            attention.relation == expected or is_causal,
            f"the relation {expected} of {name}, or a window of at least {size} tokens (a text and its output)",
            attention.relation,
        )
        score = attention.score
        _require(
            type(score) is ScaledDotProduct and score.soft_cap is None,
            "the score ScaledDotProduct without a soft cap",
            score,
        )
        _require(
            attention.value_dim == attention.key_dim,
            "values of the size of keys",
            f"value_dim={attention.value_dim}, key_dim={attention.key_dim}",
        )
        _require(attention.head_norm in (None, "rms"), "RMS norms of heads", attention.head_norm)
    attention = getattr(block, names[0])
    residuals = [getattr(block, f"{name}_residual") for name in names]
    normalizations, norms = (
        {getattr(each, name) for each in residuals} for name in ("normalization", "norm_kind")
    )
    (normalization, *others), (norm, *other_norms) = sorted(normalizations), sorted(norms)
    known = ("pre", "post", "sandwich") if len(names) == 2 else ("pre", "post")
    _require(
        not others and normalization in known,
        f"the normalization {' or '.join(known)} of all sublayers",
        ", ".join(normalizations),
    )
    _require(not other_norms, "norms of one kind", ", ".join(norms))
    cross = getattr(block, "cross_attention", None)
    if cross is not None:
        _require(
            (cross.num_heads, cross.num_kv_heads, cross.key_dim, cross.head_norm)
            == (attention.num_heads, attention.num_kv_heads, attention.key_dim, attention.head_norm),
            "cross-attention with the heads of self-attention",
            f"{cross.num_heads} heads of {cross.key_dim}",
        )
    activation = block.feed_forward.activation
    return {
        "num_heads": attention.num_heads,
        "pre_norm": normalization != "post",
        "pre_post_layer_norm": normalization == "sandwich",
        "rms_norm": norm == "rms",
        "activation": _activation(activation),
        "ffn_glu": block.feed_forward.gate is not None,
        "num_heads_kv": None if attention.num_kv_heads == attention.num_heads else attention.num_kv_heads,
        "head_dim": attention.key_dim,
        "qk_norm": attention.head_norm is not None,
        **_position_arguments(attention, is_causal=relation == relations.Causal()),
    }


def _window(relation: relations.Relation) -> int:
    """Return the number of tokens in a window that ends with the query; 0 for other relations."""
    if isinstance(relation, relations.SlidingWindow) and relation.left is not None and relation.right == 0:
        return relation.left + 1
    return 0


def _activation(activation: Any) -> int:
    """Return CTranslate2's number of an activation."""
    from ctranslate2.specs.common_spec import Activation

    function = activation_function(activation)
    known = {
        keras.activations.relu: Activation.RELU,
        keras.activations.gelu: Activation.GELU,
        activation_function("gelu_tanh"): Activation.GELUTanh,
        activation_function("geglu_tanh"): Activation.GELUTanh,
        keras.activations.silu: Activation.SWISH,
        keras.activations.tanh: Activation.Tanh,
        keras.activations.sigmoid: Activation.Sigmoid,
    }
    _require(
        function in known,
        "the activation relu, gelu, silu, tanh or sigmoid, or a gated network of one",
        getattr(activation, "__name__", activation),
    )
    return known[function]


def _position_arguments(attention: Any, is_causal: bool) -> dict[str, Any]:
    """Return the arguments of the position encoding of a self-attention, causal or not."""
    from ctranslate2.specs.attention_spec import RotaryScalingType

    encoding = attention.position_encoding
    relative = {"relative_attention_bias": type(encoding) is layers.RelativeBias}
    if is_causal:
        relative["alibi"] = type(encoding) is layers.ALiBi
    if encoding is None or any(relative.values()):
        _require(
            getattr(encoding, "bidirectional", not is_causal) != is_causal,
            f"bidirectional={not is_causal} in the relative bias",
            encoding,
        )
        return relative
    _require(
        type(encoding) is layers.RotaryPositions,
        f"rotary positions, {'ALiBi, ' if is_causal else ''}a relative bias, or positions that are added to embeddings",
        f"a {type(encoding).__name__}",
    )
    scaling = encoding.scaling
    types = {
        rotary_scaling.LinearScaling: RotaryScalingType.Linear,
        rotary_scaling.Llama3Scaling: RotaryScalingType.Llama3,
    }
    _require(
        scaling is None or type(scaling) in types, "linear or Llama 3's scaling of rotary positions", scaling
    )
    return {
        **relative,
        "rotary_dim": encoding.rotary_dim or 0,  # 0 for all
        "rotary_interleave": encoding.layout == "interleaved",
        "rotary_base": encoding.max_wavelength,
        "rotary_scaling_type": None if scaling is None else types[type(scaling)],
        "rotary_scaling_factor": 1 if scaling is None else scaling.factor,
        **({"original_max_position_embeddings": getattr(scaling, "original_length", 0)} if is_causal else {}),
    }


def _encoder_decoder(model: Any, weights: _Weights, size: int) -> Any:
    """Return the specification of a `Transformer` or `T5`."""
    from ctranslate2.specs import transformer_spec

    norms = getattr(model, "embedding_norms", {})
    options = {"layernorm_embedding": bool(norms)}
    spec = transformer_spec.TransformerSpec(
        _stack(
            transformer_spec.TransformerEncoderSpec, model.encoder_blocks, relations.Full(), size, **options
        ),
        _stack(
            transformer_spec.TransformerDecoderSpec, model.decoder_blocks, relations.Causal(), size, **options
        ),
    )
    positions = getattr(model, "positions", {})
    for side, target in (("encoder", spec.encoder), ("decoder", spec.decoder)):
        blocks, final_norm = getattr(model, f"{side}_blocks"), model.final_norms.get(f"{side}_norm")
        weights.stack(target, blocks, model.embedding, positions.get(side), size, final_norm)
        if norms:
            weights.norm(target.layernorm_embedding, norms[side])
    head = getattr(model, "head", None)
    if head is None:
        weights.projection(spec.decoder, model.embedding, getattr(model, "output_bias", None))
    else:
        weights.linear(spec.decoder.projection, head)
    if isinstance(model, models.T5) and head is None:
        spec.decoder.scale_outputs = np.float32(model.model_dim**-0.5)
    return spec


def _decoder(model: Any, weights: _Weights, size: int) -> Any:
    """Return the specification of a decoder-only model."""
    from ctranslate2.specs import transformer_spec

    decoder = _stack(
        transformer_spec.TransformerDecoderSpec,
        model.blocks,
        relations.Causal(),
        size,
        with_encoder_attention=False,
        no_final_norm=model.final_norm is None,
    )
    spec = transformer_spec.TransformerDecoderModelSpec(decoder)
    weights.stack(decoder, model.blocks, model.embedding, model.positions, size, model.final_norm)
    weights.projection(decoder, model.embedding)
    return spec


_SPECIFICATIONS: dict[type, Callable[[Any, _Weights, int], Any]] = {
    models.Transformer: _encoder_decoder,
    models.T5: _encoder_decoder,
    models.GPT: _decoder,
    models.Llama: _decoder,
    models.Gemma: _decoder,
}


def _set_vocabulary(spec: Any, pipeline: Any) -> None:
    """Register the pieces of the tokenizer, made unique, and the special tokens."""
    config = pipeline.export_config()
    size = config["vocabulary_size"]
    pieces = vocabulary(pipeline, size)
    start_id, end_id = config["start_id"], config["end_id"]
    unknown_id = getattr(pipeline.tokenizer, "unknown_id", -1)
    spec.config.eos_token = pieces[end_id]
    spec.config.bos_token = pieces[end_id if start_id is None else start_id]
    spec.config.unk_token = pieces[unknown_id if 0 <= unknown_id < size else end_id]
    if start_id is None:
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
