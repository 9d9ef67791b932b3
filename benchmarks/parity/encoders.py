"""Compare encoders in `transformers` and in this package, with the same weights: BERT, its relatives, and ViT.

Outputs of models with each head, and the loss and gradients of a step, are compared. Models of `transformers` with
random weights are saved by `save_pretrained`, read by `interop.from_hugging_face`, and written back.

    .venv-bench/bin/python benchmarks/parity/encoders.py            # --help lists the options
"""

import dataclasses
import functools
import pathlib
import sys
import tempfile
from typing import Any

import numpy as np
import tensorflow as tf
import torch
import transformers
from hugging_face import randomise

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import references

from keras_transformer import interop, pipelines
from keras_transformer.interop import bert, modernbert, vit

BERT_SIZES = {
    "small": {
        "vocab_size": 300,
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "max_position_embeddings": 64,
    },
    "base": {},
}
DISTILBERT = {
    "vocab_size": 300,
    "dim": 64,
    "n_layers": 3,
    "n_heads": 4,
    "hidden_dim": 128,
    "max_position_embeddings": 64,
}
# The settings of small models of BERT's relatives.
RELATIVES: dict[str, dict[str, Any]] = {
    **{
        name: {**BERT_SIZES["small"], "type_vocab_size": 1} for name in ("Roberta", "XLMRoberta", "Camembert")
    },
    "DistilBert": DISTILBERT,
    "Albert": {**BERT_SIZES["small"], "embedding_size": 40},
    "ModernBert": {
        **BERT_SIZES["small"],
        "num_hidden_layers": 4,
        "local_attention": 6,
        **dict.fromkeys(("pad_token_id", "bos_token_id", "cls_token_id"), 0),
        **dict.fromkeys(("eos_token_id", "sep_token_id"), 2),
    },
}
VIT_SIZES = {
    "small": {
        "image_size": 32,
        "patch_size": 8,
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 128,
    },
    "base": {"num_labels": 1000},
}
# The outputs of each class, in the order of the outputs of this package; only a variant of `BertModel` is compared.
OUTPUTS = {
    "BertForPreTraining": ("seq_relationship_logits", "prediction_logits"),
    "BertForMaskedLM": ("logits",),
    "BertForSequenceClassification": ("logits",),
    "BertForTokenClassification": ("logits",),
    "BertForQuestionAnswering": ("start_logits", "end_logits"),
    "ViTForImageClassification": ("logits",),
    "BertModel": ("last_hidden_state",),
}
HEADS = {
    "ForMaskedLM": ("logits",),
    "ForSequenceClassification": ("logits",),
    "ForTokenClassification": ("logits",),
    "ForQuestionAnswering": ("start_logits", "end_logits"),
}
OUTPUTS_OF_RELATIVES = {name + head: outputs for name in RELATIVES for head, outputs in HEADS.items()}
LABELS = {"num_labels": 5, "problem_type": "multi_label_classification"}
# Further configurations, only in small sizes: the class, its settings, and arguments of its constructor.
VARIANTS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    **{
        f"{name}, {activation}": (name, {"hidden_act": activation}, {})
        for name in ("BertForPreTraining", "BertForMaskedLM")
        for activation in ("gelu_new", "gelu_fast", "gelu_pytorch_tanh")
    },
    "BertForSequenceClassification, several labels": ("BertForSequenceClassification", LABELS, {}),
    "BertForSequenceClassification, a number": (
        "BertForSequenceClassification",
        {"num_labels": 1, "problem_type": "regression"},
        {},
    ),
    "BertForSequenceClassification, numbers": (
        "BertForSequenceClassification",
        {"num_labels": 3, "problem_type": "regression"},
        {},
    ),
    "BertForTokenClassification, two dropouts": (
        "BertForTokenClassification",
        {"hidden_dropout_prob": 0.3, "attention_probs_dropout_prob": 0.2},
        {},
    ),
    "BertModel, without pooler": ("BertModel", {}, {"add_pooling_layer": False}),
    "ViTForImageClassification, patches of 8 by 4": ("ViTForImageClassification", {"patch_size": [8, 4]}, {}),
    "ViTForImageClassification, no biases of queries, keys and values": (
        "ViTForImageClassification",
        {"qkv_bias": False},
        {},
    ),
    "ViTForImageClassification, several labels": ("ViTForImageClassification", LABELS, {}),
}
ARCHITECTURES = {
    architecture.class_name: architecture
    for architecture in (*bert.ARCHITECTURES, *modernbert.ARCHITECTURES, vit.VIT)
}


def texts(config: Any, random: np.random.Generator) -> tuple[Any, dict[str, Any], np.ndarray]:
    """Return inputs with padding for this package and for `transformers`, and the padding mask."""
    ids = random.integers(2, config.vocab_size, (3, 20))
    valid = np.arange(20) < np.array([[20], [13], [7]])
    ids = np.where(valid, ids, config.pad_token_id)
    inputs, reference_inputs = {"token_ids": ids}, {"input_ids": ids, "attention_mask": valid}
    if getattr(config, "type_vocab_size", 1) > 1:
        segments = np.where(valid, np.arange(20) > 5, 0)
        inputs, reference_inputs["token_type_ids"] = {**inputs, "segment_ids": segments}, segments
    tensors = {name: torch.tensor(array.astype("int64")) for name, array in reference_inputs.items()}
    return inputs, tensors, valid


def images(size: int, random: np.random.Generator) -> tuple[Any, dict[str, Any], None]:
    """Return images for this package and for `transformers`."""
    pixels = random.integers(0, 256, (2, size, size, 3)).astype("float32")
    return pixels, {"pixel_values": torch.tensor((pixels / 127.5 - 1).transpose(0, 3, 1, 2))}, None


def our_outputs(output: Any) -> list[Any]:
    """Return the outputs of a model in the order of `OUTPUTS`."""
    if isinstance(output, dict):
        return [output[name] for name in sorted(output)]
    return [output[:, 0], output[:, 1]] if len(output.shape) == 3 and output.shape[1] == 2 else [output]


def compare(name: str, size: str, seed: int) -> dict[str, Any]:
    """Compare one class."""
    name, changes, options = VARIANTS.get(name, (name, {}, {}))
    architecture, random = ARCHITECTURES[name], np.random.default_rng(seed)
    family, of_texts = name.partition("For")[0].removesuffix("Model"), not name.startswith("ViT")
    sizes = {"Bert": BERT_SIZES, "ViT": VIT_SIZES}
    settings = {**(sizes[family][size] if family in sizes else RELATIVES[family]), **changes}
    kind = getattr(transformers, name)
    reference = kind(kind.config_class(**settings), **options).eval()
    randomise(reference, seed)
    samples = texts(reference.config, random) if of_texts else images(reference.config.image_size, random)
    inputs, their_inputs, valid = samples
    with tempfile.TemporaryDirectory() as folder:
        reference.save_pretrained(folder)
        without = {each: 0.0 for each in architecture.settings if each.endswith("dropout")}
        model = interop.from_hugging_face(folder, **without)
        interop.to_hugging_face(model, pathlib.Path(folder) / "back", architecture.model_type)
        back = kind.from_pretrained(pathlib.Path(folder) / "back", **options).eval()
        answers = (
            compare_answers(reference, pathlib.Path(folder)) if "problem_type" in changes and of_texts else {}
        )
    outputs = {**OUTPUTS, **OUTPUTS_OF_RELATIVES}[name]
    expected = [getattr(reference(**their_inputs), output) for output in outputs]
    with torch.no_grad():
        again = [getattr(back(**their_inputs), output) for output in outputs]
    # Several names of one activation are written as one name, whose implementation rounds differently.
    activation = str(architecture.settings["activation"])
    renamed = getattr(back.config, activation) != getattr(reference.config, activation)
    same = functools.partial(torch.allclose, rtol=0, atol=1e-5) if renamed else torch.equal
    weights = model.trainable_weights
    with tf.GradientTape() as tape:
        actual = our_outputs(model(inputs, training=True))
        kept = [_valid(each, valid, tf.boolean_mask) for each in actual]
        loss = tf.add_n([_loss(each, tf) for each in kept])
    gradients = tape.gradient(loss, [weight.value for weight in weights])
    expected_kept, again_kept = (
        [_valid(each, valid, lambda x, mask: x[torch.tensor(mask)]) for each in found]
        for found in (expected, again)
    )
    their_loss = sum(_loss(each, torch) for each in expected_kept)
    their_loss.backward()
    difference = max(
        float(np.abs(mine.numpy() - other.detach().numpy()).max())
        for mine, other in zip(kept, expected_kept, strict=True)
    )
    return {
        "parameters": model.count_params(),
        "outputs": difference,
        "outputs, largest": max(float(each.detach().abs().max()) for each in expected_kept),
        "loss": abs(float(loss) / their_loss.item() - 1),
        **_worst_gradient(
            architecture, model, reference, dict(zip(map(id, weights), gradients, strict=True))
        ),
        **answers,
        "written back": all(same(a.detach(), b) for a, b in zip(expected_kept, again_kept, strict=True)),
    }


def compare_answers(reference: Any, folder: pathlib.Path) -> dict[str, float]:
    """Return the largest difference of a score from `pipeline("text-classification", top_k=None)`."""
    words = [f"w{i}" for i in range(reference.config.vocab_size - 5)]
    (folder / "vocab.txt").write_text(
        "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]) + "\n"
    )
    tokenizer = transformers.BertTokenizer.from_pretrained(folder)
    lines = [" ".join(words[7 * i : 7 * i + 5 + i]) for i in range(4)]
    expected_scores = transformers.pipeline(
        "text-classification", reference, tokenizer=tokenizer, top_k=None
    )(lines)
    pipeline = pipelines.from_hugging_face(folder)
    scores = [dict(zip(pipeline.labels, row.tolist(), strict=True)) for row in pipeline.scores(lines)]
    differences = [
        abs(row[score["label"]] - score["score"])
        for row, expected in zip(scores, expected_scores, strict=True)
        for score in expected
    ]
    return {"scores of texts": max(differences)}


def _valid(output: Any, valid: np.ndarray | None, mask: Any) -> Any:
    """Return the outputs for tokens, if any."""
    return mask(output, valid) if valid is not None and tuple(output.shape[:2]) == valid.shape else output


def _loss(logits: Any, library: Any) -> Any:
    """Return a loss that depends on all logits: the mean over rows of log-sum-exp minus the first logit."""
    rows = logits.reshape(len(logits), -1) if library is torch else tf.reshape(logits, [len(logits), -1])
    if rows.shape[1] == 1:
        return (rows**2).mean() if library is torch else tf.reduce_mean(rows**2)
    if library is torch:
        return (torch.logsumexp(rows, 1) - rows[:, 0]).mean()
    return tf.reduce_mean(tf.reduce_logsumexp(rows, 1) - rows[:, 0])


def _worst_gradient(
    architecture: Any, model: Any, reference: Any, gradient_of: dict[int, Any]
) -> dict[str, Any]:
    """Return the largest relative difference of a parameter's gradient, and the parameter's name."""
    expected_gradients = {
        _in_file(name): each.grad
        for name, each in reference.named_parameters(remove_duplicate=False)
        if each.grad is not None and name not in architecture.tied
    }
    compared = []
    for name, parameter in architecture.parameters(model):
        parts = tuple(tf.convert_to_tensor(gradient_of[id(weight)]) for weight in parameter.weights)
        actual = dataclasses.replace(parameter, weights=parts).write()
        expected = expected_gradients.pop(name).numpy()
        if name.endswith(("word_embeddings.weight", "tok_embeddings.weight")):
            # PyTorch's embedding gives padding no gradient.
            pad_id = reference.config.pad_token_id
            actual, expected = np.delete(actual, pad_id, axis=0), np.delete(expected, pad_id, axis=0)
        compared.append((name, actual, expected))
    if expected_gradients:
        raise ValueError(f"not compared: {sorted(expected_gradients)}")
    return references.worst_gradient(compared)


def _in_file(name: str) -> str:
    """Return the name of a parameter in files, which may differ from the name in the classes."""
    if name.startswith("vit.layers."):
        for new, old in (
            ("vit.layers.", "vit.encoder.layer."),
            ("attention.o_proj", "attention.output.dense"),
            ("attention.q_proj", "attention.attention.query"),
            ("attention.k_proj", "attention.attention.key"),
            ("attention.v_proj", "attention.attention.value"),
            ("mlp.fc1", "intermediate.dense"),
            ("mlp.fc2", "output.dense"),
        ):
            name = name.replace(new, old)
    return name


REFERENCE = references.Reference(
    __file__,
    __doc__,
    {
        f"{name}, {size}": {"name": name, "size": size}
        for name in (*OUTPUTS, *VARIANTS, *OUTPUTS_OF_RELATIVES)
        for size in ("small", "base")
        if name != "BertModel" and (size == "small" or (name in OUTPUTS and name not in VARIANTS))
    },
    lambda run: compare(**run.case, seed=run.seed),
    limits={"outputs": 1e-4, "loss": 1e-3, "gradients": 1e-3, "scores of texts": 1e-4},
    equal=("written back",),
    name="parity_encoders",
)

if __name__ == "__main__":
    sys.exit(REFERENCE.main())
