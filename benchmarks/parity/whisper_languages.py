"""Compare languages, tasks and the detection of languages of a multilingual Whisper with `transformers`.

    .venv-bench/bin/python benchmarks/parity/whisper_languages.py

Models of random weights, with Whisper's special tokens, transcribe sounds with each language and task, and with the
language detected. The figures are the rows of equal ids and of equal detected languages, of the pipeline and of its
ONNX graphs.
"""

import argparse
import json
import os
import pathlib
import sys
import tempfile

os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tokenizers
import torch
import transformers
from transformers.models.whisper.tokenization_whisper import LANGUAGES

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import keras_transformer as kt
import keras_transformer_serving as serving
from keras_transformer.pipelines.babble import babble

RATE = 16000
SECONDS = 2  # of the model's window
TOKENS = 20
TASKS = ("translate", "transcribe")
SPECIAL = ("startoflm", "startofprev", "nospeech", "notimestamps")


def write_folder(folder: pathlib.Path, seed: int) -> None:
    """Write the folder of a model of random weights; its text tokens are bytes."""
    pieces = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    names = ("endoftext", "startoftranscript", *LANGUAGES, *TASKS, *SPECIAL)
    special = [f"<|{name}|>" for name in names]
    times = [f"<|{place * 0.02:.2f}|>" for place in range(1501)]
    ids = {piece: id_ for id_, piece in enumerate([*pieces, *special, *times])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE({piece: ids[piece] for piece in pieces}, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens(times)
    end, start = ids["<|endoftext|>"], ids["<|startoftranscript|>"]
    roles = {"eos_token_id": end, "bos_token_id": end, "pad_token_id": end, "decoder_start_token_id": start}
    torch.manual_seed(seed)
    model = transformers.WhisperForConditionalGeneration(
        transformers.WhisperConfig(
            vocab_size=len(ids),
            d_model=32,
            encoder_layers=1,
            decoder_layers=2,
            encoder_attention_heads=2,
            decoder_attention_heads=2,
            encoder_ffn_dim=48,
            decoder_ffn_dim=48,
            max_source_positions=50 * SECONDS,
            max_target_positions=40,
            init_std=0.4,
            suppress_tokens=[],
            begin_suppress_tokens=None,
            **roles,
        )
    )
    model.generation_config = transformers.GenerationConfig(
        **roles,
        is_multilingual=True,
        lang_to_id={f"<|{name}|>": ids[f"<|{name}|>"] for name in LANGUAGES},
        task_to_id={name: ids[f"<|{name}|>"] for name in TASKS},
        no_timestamps_token_id=ids["<|notimestamps|>"],
        suppress_tokens=[*range(end + 1, len(ids))],
        return_timestamps=False,
    )
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "WhisperTokenizer",
        **dict.fromkeys(("eos_token", "pad_token"), special[0]),
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    transformers.WhisperFeatureExtractor(chunk_length=SECONDS).save_pretrained(folder)


def compare(folder: pathlib.Path, seed: int, count: int) -> dict[str, int]:
    """Return the numbers of rows whose ids and languages equal those of `transformers`."""
    model = transformers.WhisperForConditionalGeneration.from_pretrained(folder).eval()
    extract = transformers.WhisperFeatureExtractor.from_pretrained(folder)
    pipeline = kt.pipelines.from_hugging_face(folder, max_new_tokens=TOKENS)
    kt.export.onnx(pipeline, folder / "export")
    functions = {"pipeline": pipeline, "onnx": serving.load(folder / "export")}
    audio = [
        babble(RATE + 2000 * place, RATE, 100 * seed + place) / 10 ** (place % 4) for place in range(count)
    ]
    features = extract(audio, sampling_rate=RATE, return_tensors="pt").input_features
    figures = {
        "rows": 0,
        **{f"{name} {values}": 0 for name in functions for values in ("texts", "languages")},
    }
    ids_of = model.generation_config.lang_to_id
    with torch.no_grad():
        detected = model.detect_language(features).tolist()
        for language in ("", "en", "es", "yue"):
            for task in TASKS:
                options = {"language": language} if language else {}
                found = model.generate(features, task=task, max_new_tokens=TOKENS, **options).tolist()
                texts = [text_of(pipeline, ids) for ids in found]
                codes = [language or code_of(ids_of, id_) for id_ in detected]
                figures["rows"] += count
                for name, function in functions.items():
                    answers = function.transcripts(audio, 3, language=language, task=task)
                    figures[f"{name} texts"] += sum(a.text == b for a, b in zip(answers, texts, strict=True))
                    equal = (a.language == b for a, b in zip(answers, codes, strict=True))
                    figures[f"{name} languages"] += sum(equal)
    figures["different texts"] = len({answer.text for answer in answers})
    figures["detected languages"] = len({*detected})
    return figures


def text_of(pipeline: kt.pipelines.SpeechToText, ids: list[int]) -> str:
    """Return the text of generated ids."""
    return pipeline.text_methods.methods["detokenize"]([ids])[0]


def code_of(ids_of: dict[str, int], id_: int) -> str:
    """Return the code of the token of a language."""
    return next(token[2:-2] for token, other in ids_of.items() if other == id_)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--rows", type=int, default=5, help="default: %(default)s")
    arguments = parser.parse_args()
    for number in range(arguments.models):
        with tempfile.TemporaryDirectory() as name:
            write_folder(pathlib.Path(name), number)
            print(json.dumps(compare(pathlib.Path(name), number, arguments.rows)))
