"""Pipelines that are saved as folders of `transformers` and `sentence-transformers` answer there as here.

    .venv/bin/python benchmarks/parity/saved_pipelines.py write FOLDER        # folders and answers, without PyTorch
    .venv-bench/bin/python benchmarks/parity/saved_pipelines.py check FOLDER  # the answers of the libraries

The first command writes a pipeline of each kind with random weights, the second compares: token ids, scores, vectors,
chat prompts, generated texts, images and speech.
"""

import argparse
import json
import os
import pathlib
from collections.abc import Callable
from typing import Any

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import numpy as np

TEXTS = [
    "the house is blue",
    "where is the station?",
    "El PERRO come  el pan, ¡no!",
    "naïve café 1234",
    "être 家",
    "12 dogs and 34,567 cats aren't <think> here",
]
PAIRS = [("where is the dog?", "the dog eats the bread"), ("12", "a house")]
MESSAGES = [{"role": "user", "content": "the dog"}]
CHAT = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}</s>{% endfor %}"
    "{% if tools is not none %}T{% endif %}"
)
SIZES = {"num_layers": 2, "num_heads": 2, "model_dim": 12, "hidden_dim": 20, "dropout": 0.0}
LABELS = ["no", "yes", "maybe"]


def randomise(model: Any) -> Any:
    """Set random weights, so that answers differ."""
    random = np.random.default_rng(1)
    for weight in model.trainable_weights:
        weight.assign(random.normal(size=weight.shape) * 0.4)
    return model


def pipelines() -> dict[str, Any]:
    """Return a pipeline of each kind."""
    import io

    import keras
    import sentencepiece

    import keras_transformer as kt
    from keras_transformer.interop.assignment import quantize_weights
    from keras_transformer.text.pretokenizers.patterns import LLAMA_3

    models, text, made = kt.models, kt.text, kt.pipelines
    roles = {"pad": "<pad>", "unknown": "<unk>", "start": "<s>", "end": "</s>", "mask": "<mask>"}
    lines = [*TEXTS, *sum(PAIRS, ())] * 3
    words = text.WordPieceTokenizer.train(lines, 120)
    byte_pairs = text.BytePairTokenizer.train(lines, 320, special_tokens=roles)
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines * 3),
        model_writer=written,
        vocab_size=120,
        hard_vocab_limit=False,
        minloglevel=2,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
    )
    proto = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
    pieces = [proto.id_to_piece(id_) for id_ in range(proto.vocab_size())]
    unigram = text.MarianT5Tokenizer(
        written.getvalue(), [*pieces, "<extra_id_0>"], tokens_in_text=["<extra_id_0>"]
    )
    xlmr_pieces = ["<s>", "<pad>", "</s>", "<unk>", *pieces[3:], "<mask>"]
    xlmr = text.MarianT5Tokenizer(
        written.getvalue(), xlmr_pieces, special_tokens=roles, pair_separators=2, lstrip_mask=True
    )

    def bert(tokenizer: Any = words, **options: Any) -> Any:
        return models.BERT(
            tokenizer.vocabulary_size, **{**SIZES, "max_length": 40, "pad_id": tokenizer.pad_id, **options}
        )

    def roberta(tokenizer: Any) -> Any:
        return bert(tokenizer, num_segments=1)

    roberta_pairs = text.BytePairTokenizer(
        ["<s>", "<pad>", "</s>", "<unk>", *[p for p in byte_pairs.vocabulary if p not in roles.values()], "<mask>"],
        byte_pairs.merges, special_tokens=roles, pair_separators=2, lstrip_mask=True,
    )  # fmt: skip

    def llm(tokenizer: Any, **options: Any) -> Any:
        return models.Llama(
            tokenizer.vocabulary_size,
            **{**SIZES, "num_kv_heads": 1},
            end_id=tokenizer.end_id,
            pad_id=None,
            **options,
        )

    llama3 = byte_pairs.with_arguments(pattern=LLAMA_3, ignore_merges=True)
    fallback = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "\u2581",
        *"abcdefgh",
        "\u2581a",
        "<think>",
    ]
    llama2 = text.LlamaTokenizer(fallback, [("\u2581", "a")], tokens_in_text=["<think>"])
    beam = kt.generation.Beam(2, length_penalty=1.0, normalization="length")
    quantized = made.TextClassification(randomise(models.SequenceClassifier(bert(), 3)), words, LABELS)
    quantize_weights(quantized.model)
    whisper_tokens = {
        "unknown": "<|endoftext|>",
        "end": "<|endoftext|>",
        "pad": "<|endoftext|>",
        "start": "<|startoftranscript|>",
        "en": "<|en|>",
    }
    whisper_text = text.BytePairTokenizer.train(lines, 300, special_tokens=whisper_tokens)
    end = whisper_text.end_id
    whisper = models.Whisper(
        whisper_text.vocabulary_size, **SIZES, max_source_length=100, max_length=16, pad_id=end, end_id=end,
        start_id=whisper_text.start_id,
    )  # fmt: skip
    gpt = models.GPT(
        byte_pairs.vocabulary_size, **SIZES, max_length=48, pad_id=None, end_id=byte_pairs.end_id
    )
    head = [
        keras.layers.Dense(7, "tanh", dtype="float32"),
        keras.layers.LayerNormalization(epsilon=1e-5, dtype="float32"),
    ]
    return {
        "bert classifier": made.TextClassification(randomise(models.SequenceClassifier(bert(), 3)), words, LABELS),
        "int8 classifier": quantized,
        "roberta classifier": made.TextClassification(
            randomise(models.SequenceClassifier(roberta(roberta_pairs), 3)), roberta_pairs, LABELS
        ),
        "distilbert tokens": made.TokenClassification(
            randomise(models.TokenClassifier(bert(num_segments=0), 3)), words, LABELS
        ),
        "xlmr masked": made.FillMask(randomise(models.MaskedLanguageModel(roberta(xlmr))), xlmr),
        "bert questions": made.QuestionAnswering(randomise(models.SpanClassifier(bert())), words),
        "bert embedding": made.Embedding(
            randomise(bert()), words, max_length=12, long_texts="truncate", prompts={"query": "q: "}
        ),
        "roberta embedding": made.Embedding(
            randomise(models.SentenceEncoder(roberta(roberta_pairs), ("first", "mean"), head)), roberta_pairs,
            normalize=False,
        ),
        "bert reranking": made.Reranking(
            randomise(models.SequenceClassifier(bert(), 1)), words, activation="linear", max_length=20
        ),
        "gpt2": made.TextGeneration(
            randomise(gpt), byte_pairs, max_new_tokens=8, constraints=[kt.generation.EndTokens([40, 50])],
            add_start=True, chat_template=CHAT,
        ),
        "llama 3": made.TextGeneration(randomise(llm(llama3)), llama3, beam, max_new_tokens=6),
        "llama 2": made.TextGeneration(randomise(llm(llama2)), llama2, max_new_tokens=6, add_start=True),
        "t5": made.TextToText(
            randomise(models.T5(unigram.vocabulary_size, **SIZES, pad_id=0, end_id=1, start_id=0)), unigram,
            max_new_tokens=6,
        ),
        "vit": made.ImageClassification(randomise(models.ViT(8, 4, num_classes=3, **SIZES)), LABELS),
        "whisper": made.SpeechToText(
            randomise(whisper), whisper_text, prefix_ids=[whisper_text.piece_to_id("<|en|>")], max_new_tokens=8
        ),
    }  # fmt: skip


def images() -> np.ndarray:
    """Return images."""
    return np.random.default_rng(0).integers(0, 256, (3, 8, 8, 3)).astype("uint8")


def audio() -> np.ndarray:
    """Return a second of noise."""
    return (0.1 * np.random.default_rng(0).normal(size=16000)).astype("float32")


def write(folder: pathlib.Path, names: list[str]) -> None:
    """Write the pipelines, and their answers."""
    import keras_transformer as kt

    for name, pipeline in pipelines().items():
        if names and name not in names:
            continue
        path = kt.pipelines.to_hugging_face(pipeline, folder / name.replace(" ", "-"))
        expected = answers(pipeline)
        again = kt.pipelines.from_hugging_face(path)
        assert type(again) is type(pipeline), name
        difference = largest_difference(answers(again), expected)
        (path / "expected.json").write_text(json.dumps(expected))
        print(f"{name}: read again with a difference of {difference:.1e}")


def answers(pipeline: Any) -> dict[str, Any]:
    """Return what the libraries must compute, too."""
    name, tokenizer = type(pipeline).__name__, pipeline.tokenizer
    ids = {} if tokenizer is None else {"ids": [rows_of(pipeline, text) for text in TEXTS]}
    match name:
        case "TextClassification":
            scores = np.concatenate([pipeline.scores(TEXTS), pipeline.scores(*zip(*PAIRS, strict=True))])
            return {**ids, "scores": scores.tolist(), "labels": pipeline.labels}
        case "Embedding":
            return {**ids, "vectors": pipeline(TEXTS).tolist()}
        case "Reranking":
            queries, texts = zip(*PAIRS, strict=True)
            return {**ids, "scores": [float(score) for score in pipeline(list(queries), list(texts))]}
        case "TextGeneration":
            found = {
                **ids,
                "texts": [prompt + answer for prompt, answer in zip(TEXTS, pipeline(TEXTS), strict=True)],
            }
            if pipeline.chat_template is not None:
                found["prompts"] = [pipeline.apply_chat_template(MESSAGES, tools) for tools in (None, [])]
            return found
        case "TextToText":
            return {**ids, "texts": pipeline(TEXTS)}
        case "ImageClassification":
            return {"scores": pipeline.scores(images()).tolist(), "labels": pipeline.labels}
        case "SpeechToText":
            return {"texts": [pipeline(audio())]}
    logits = [np.asarray(pipeline.model(np.array([row]))).tolist() for row in ids["ids"]]
    return {**ids, "logits": logits}


def rows_of(pipeline: Any, text: str) -> list[int]:
    """Return the ids of a text with the special tokens around it."""
    tokenizer, rows = pipeline.tokenizer, pipeline.hugging_face_rows
    return tokenizer.encode(text, **rows, special_tokens=True).numpy().tolist()


def largest_difference(found: Any, expected: Any) -> float:
    """Return the largest difference of numbers, infinity if anything else differs."""
    if isinstance(expected, dict):
        return max(largest_difference(found[key], value) for key, value in expected.items())
    if isinstance(expected, list):
        if len(found) != len(expected):
            return np.inf
        return max((largest_difference(*pair) for pair in zip(found, expected, strict=True)), default=0.0)
    if isinstance(expected, float):
        return abs(found - expected)
    return 0.0 if found == expected else np.inf


def check(folder: pathlib.Path, names: list[str]) -> None:
    """Compare the answers of the libraries with those of the pipelines."""
    worst = 0.0
    for path in sorted(folder.iterdir()):
        if names and path.name.replace("-", " ") not in names:
            continue
        expected = json.loads((path / "expected.json").read_text())
        found = computed(path, expected)
        difference = max(largest_difference(found[key], expected[key]) for key in expected)
        worst = max(worst, difference)
        print(f"{path.name}: a difference of {difference:.1e}")
        if difference > 1e-4:
            for key in expected:
                print(
                    "   ",
                    key,
                    largest_difference(found[key], expected[key]),
                    found[key],
                    expected[key],
                    sep="\n      ",
                )
    assert worst < 1e-4, "the libraries give other answers"


def computed(path: pathlib.Path, expected: dict[str, Any]) -> dict[str, Any]:
    """Return the answers of the libraries."""
    import torch
    import transformers

    config = json.loads((path / "config.json").read_text())
    if (path / "modules.json").is_file():
        import sentence_transformers

        model = sentence_transformers.SentenceTransformer(str(path), device="cpu")
        return {
            "ids": [model.tokenizer(text)["input_ids"] for text in TEXTS],
            "vectors": model.encode(TEXTS).tolist(),
        }
    if "sentence_transformers" in config:
        import sentence_transformers

        model = sentence_transformers.CrossEncoder(str(path), device="cpu")
        ids = [model.tokenizer(text)["input_ids"] for text in TEXTS]
        return {"ids": ids, "scores": model.predict(PAIRS).tolist()}
    class_name = config["architectures"][0]
    model = getattr(transformers, class_name).from_pretrained(path).eval()
    with torch.no_grad():
        if config["model_type"] == "vit":
            inputs = transformers.AutoImageProcessor.from_pretrained(path)(
                list(images()), return_tensors="pt"
            )
            return {
                "scores": model(**inputs).logits.softmax(-1).tolist(),
                "labels": [*model.config.id2label.values()],
            }
        tokenizer = transformers.AutoTokenizer.from_pretrained(path)
        if config["model_type"] == "whisper":
            features = transformers.AutoFeatureExtractor.from_pretrained(path)(
                audio(), sampling_rate=16000, return_tensors="pt"
            )
            ids = model.generate(features.input_features)
            return {"texts": tokenizer.batch_decode(ids, skip_special_tokens=True)}
        found: dict[str, Any] = {"ids": [tokenizer(text)["input_ids"] for text in TEXTS]}
        if "scores" in expected:
            batches = [tokenizer(text, return_tensors="pt") for text in TEXTS]
            batches += [tokenizer(*pair, return_tensors="pt") for pair in PAIRS]
            found["scores"] = [model(**batch).logits.softmax(-1)[0].tolist() for batch in batches]
            found["labels"] = [*model.config.id2label.values()]
        if "logits" in expected:
            outputs = [model(**tokenizer(text, return_tensors="pt")) for text in TEXTS]
            found["logits"] = [logits_of(output).tolist() for output in outputs]
        if "texts" in expected:
            found["texts"] = [generated(model, tokenizer, text) for text in TEXTS]
        if "prompts" in expected:
            render: Callable[..., str] = tokenizer.apply_chat_template
            found["prompts"] = [
                render(MESSAGES, tools=tools, tokenize=False, add_generation_prompt=True)
                for tools in (None, [])
            ]
    return found


def logits_of(output: Any) -> Any:
    """Return the logits of tokens, or of starts and ends."""
    import torch

    return (
        torch.stack([output.start_logits, output.end_logits], 1)
        if hasattr(output, "start_logits")
        else output.logits
    )


def generated(model: Any, tokenizer: Any, text: str) -> str:
    """Return the text that a model generates, without the end token that it ends with."""
    inputs = tokenizer(text, return_tensors="pt")
    inputs.pop("token_type_ids", None)
    ids = model.generate(**inputs, do_sample=False)[0].tolist()
    start = 1 if model.config.is_encoder_decoder else 0
    ends = model.generation_config.eos_token_id
    new = ids[start or inputs["input_ids"].shape[1] :]
    while new and new[-1] in [*ends, model.generation_config.pad_token_id]:
        new.pop()
    answer = tokenizer.decode(new, clean_up_tokenization_spaces=False)
    return answer if start else text + answer


def main() -> None:
    """Write or check the folders."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("command", choices=["write", "check"])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("names", nargs="*", help="the pipelines, by default all")
    options = parser.parse_args()
    {"write": write, "check": check}[options.command](options.folder, options.names)


if __name__ == "__main__":
    main()
