"""The parameters of models: formulas of their number, published numbers, and initial values."""

import inspect

from keras_transformer.models import BERT, GPT, T5, Pretraining, Transformer, ViT


def linear(inputs, outputs):
    """Count the weights of a matrix and its bias."""
    return (inputs + 1) * outputs


def encoder_block(d, h):
    """Count the weights of four projections, a feed-forward network and two norms."""
    return 4 * linear(d, d) + linear(d, h) + linear(h, d) + 4 * d


def gpt(*, vocabulary_size, num_layers, model_dim, hidden_dim, max_length, normalization, **_):
    d = model_dim
    blocks = num_layers * encoder_block(d, hidden_dim or 4 * d)
    return (vocabulary_size + max_length) * d + blocks + (0 if normalization == "post" else 2 * d)


def bert(*, vocabulary_size, num_layers, model_dim, hidden_dim, max_length, num_segments, **_):
    d = model_dim
    embeddings = (vocabulary_size + max_length + num_segments + 2) * d  # with their norm
    return embeddings + num_layers * encoder_block(d, hidden_dim or 4 * d) + linear(d, d)


def vit(*, image_size, patch_size, num_classes, num_layers, model_dim, hidden_dim, pooling, **_):
    d, (image, patch) = model_dim, (sides(image_size), sides(patch_size))
    positions = image[0] // patch[0] * (image[1] // patch[1]) + (2 if pooling == "token" else 0)
    head = linear(d, num_classes) if num_classes else 0
    patches = linear(3 * patch[0] * patch[1], d)
    return patches + positions * d + num_layers * encoder_block(d, hidden_dim) + 2 * d + head


def sides(size):
    """Return height and width."""
    return size if isinstance(size, tuple) else (size, size)


def transformer(
    *, vocabulary_size, num_layers, model_dim, hidden_dim, normalization, norm, activation, **more
):
    d, norms = model_dim, (2 if normalization == "sandwich" else 1) * (1 if norm == "rms" else 2) * model_dim
    inward = 2 if activation == "swiglu" else 1

    def stack(layers, attentions, h):
        feed_forward = inward * linear(d, h) + linear(h, d)
        return layers * (attentions * 4 * linear(d, d) + feed_forward + (attentions + 1) * norms)

    decoder = stack(more["num_decoder_layers"] or num_layers, 2, more["decoder_hidden_dim"] or hidden_dim)
    final = 0 if normalization == "post" else 2 * (1 if norm == "rms" else 2) * d
    return vocabulary_size * d + stack(num_layers, 1, hidden_dim) + decoder + final


def t5(*, vocabulary_size, num_layers, num_heads, model_dim, hidden_dim, key_dim, activation, tied, **more):
    d, inward = model_dim, 1 if activation == "relu" else 2

    def stack(layers, attentions, heads, h):
        block = attentions * 4 * d * heads * key_dim + (inward + 1) * d * h + (attentions + 1) * d
        return layers * block + more["num_buckets"] * heads + d  # the table and the final norm

    decoder = (
        more["num_decoder_layers"] or num_layers,
        2,
        more["num_decoder_heads"] or num_heads,
        more["decoder_hidden_dim"] or hidden_dim,
    )
    return (
        (1 if tied else 2) * vocabulary_size * d
        + stack(num_layers, 1, num_heads, hidden_dim)
        + stack(*decoder)
    )


FORMULAS = {GPT: gpt, BERT: bert, ViT: vit, Transformer: transformer, T5: t5}
# The cases of `models.MODELS` whose options the formulas know.
COUNTED = (
    "GPT-gpt2",
    "GPT-gpt1",
    "Transformer-pre",
    "Transformer-post",
    "Transformer-sandwich",
    "Transformer-rms, swiglu",
    "T5-original",
    "T5-v1.1",
    "BERT-base",
    "ViT-class token",
    "ViT-features",
)


def count(model, options):
    """Return the number of parameters of a class of models for arguments, by its formula."""
    signature = inspect.signature(model)
    arguments = signature.bind_partial(**options)
    arguments.apply_defaults()
    return FORMULAS[model](**arguments.arguments)


# The paper's table 3 rounds the Transformer's to 65 and 213 million; the vocabulary there is "about 37,000".
PUBLISHED = {
    (GPT, "gpt"): 116_534_784,
    (GPT, "gpt2"): 124_439_808,
    (GPT, "gpt2_medium"): 354_823_168,
    (GPT, "gpt2_large"): 774_030_080,
    (GPT, "gpt2_xl"): 1_557_611_200,
    (BERT, "tiny"): 4_385_920,
    (BERT, "base"): 109_482_240,
    (BERT, "large"): 335_141_888,
    (ViT, "b16"): 86_567_656,
    (ViT, "b32"): 88_224_232,
    (ViT, "l16"): 304_326_632,
    (T5, "t5_small"): 60_506_624,
    (T5, "t5_base"): 222_903_552,
    (T5, "t5_large"): 737_668_096,
    (T5, "v1_1_small"): 76_961_152,
    (T5, "v1_1_base"): 247_577_856,
    (Transformer, "base"): 63_082_496,
    (Transformer, "big"): 214_245_376,
}


def arguments_of(model, size):
    """Return the constructor's arguments of a published size, without creating the model."""
    if model is Transformer:
        create = getattr(model, size).__func__
        return create(lambda vocabulary_size, **sizes: {"vocabulary_size": vocabulary_size, **sizes})
    return model.sizes[size]


def of_gpt(weight):
    """Return 0.02, divided by √(2 N) in the N = 2 projections to the residual connections."""
    is_drawn = weight.name in ("kernel", "embeddings", "table")
    return 0.02 / (2 if weight.path.endswith("output/kernel") else 1) if is_drawn else 0.0


def of_bert(weight):
    """Return the standard deviation of a normal distribution of 0.02 that is truncated at 0.04."""
    return 0.0176 if weight.name in ("kernel", "embeddings", "table") else 0.0


def of_t5(weight):
    """Return 1/√(inputs), and in queries 1/√(inputs · K)."""
    if weight.path.endswith("query/kernel"):
        return (64 * 32) ** -0.5
    return {"embeddings": 1.0, "table": 1 / 8, "scale": 0.0}.get(weight.name, weight.shape[0] ** -0.5)


# A function that creates a model, and the standard deviations of its weights in the paper.
DEVIATIONS = {
    "GPT-2": (lambda: GPT(200, num_layers=2, num_heads=4, model_dim=64, max_length=64), of_gpt),
    "BERT": (
        lambda: Pretraining(BERT(200, num_layers=2, num_heads=4, model_dim=64, max_length=64)),
        of_bert,
    ),
    "T5": (
        lambda: T5(500, num_layers=1, num_heads=4, model_dim=64, hidden_dim=128, key_dim=32, tied=False),
        of_t5,
    ),
}
