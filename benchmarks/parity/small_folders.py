"""Small models of `transformers` with random weights, and what they compute: the folders in `tests/interop/folders`.

    .venv-bench/bin/python benchmarks/parity/small_folders.py tests/interop/folders

Where published weights cannot be downloaded, tests read these folders. No two sizes are equal by chance. Translation
models of many languages have their tokenizers and translations, too.
"""

import argparse
import io
import json
import os
import pathlib
import re
import shutil
import tempfile

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import numpy as np
import sentencepiece
import torch
import transformers

NEW_TOKENS = 8
LONG = 36  # tokens, more than the original length of Phi-3
SEARCHES = {
    "greedy": {"num_beams": 1},
    "beam": {"num_beams": 3, "length_penalty": 0.0, "early_stopping": "never"},
}
SEQ2SEQ = {
    "vocab_size": 41,
    "d_model": 12,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": 14,
    "decoder_ffn_dim": 14,
    "max_position_embeddings": 23,
}
# A deep encoder with a shallow, narrow decoder, as of fast translators.
NARROW_DECODER = {"decoder_attention_heads": 2, "decoder_ffn_dim": 10}
T5 = {
    "vocab_size": 41,
    "d_model": 12,
    "d_kv": 5,
    "d_ff": 14,
    "num_layers": 2,
    "num_decoder_layers": 1,
    "num_heads": 3,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 12,
    "decoder_start_token_id": 0,
}
WHISPER = {
    **{name: value for name, value in SEQ2SEQ.items() if name != "max_position_embeddings"},
    **NARROW_DECODER,
    "num_mel_bins": 10,
    "max_source_positions": 11,
    "max_target_positions": 23,
    "pad_token_id": 2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
ENCODER = {
    "vocab_size": 41,
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 14,
    "max_position_embeddings": 23,
}
DISTILBERT = {
    "vocab_size": 41,
    "dim": 12,
    "n_layers": 2,
    "n_heads": 3,
    "hidden_dim": 14,
    "max_position_embeddings": 23,
}
MODERNBERT = {
    **ENCODER,
    "num_hidden_layers": 4,
    "local_attention": 4,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "cls_token_id": 1,
    "eos_token_id": 2,
    "sep_token_id": 2,
    "classifier_pooling": "mean",
}
DECODER = {
    "vocab_size": 41,
    "hidden_size": 12,
    "intermediate_size": 14,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
QWEN = {**DECODER, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}
GEMMA = {**DECODER, "sliding_window": 4, "query_pre_attn_scalar": 18}
HEADS = {
    "Model": {},
    "ForMaskedLM": {},
    "ForSequenceClassification": {"num_labels": 4},
    "ForTokenClassification": {"num_labels": 4},
    "ForQuestionAnswering": {},
}
# The class of the model, and its settings.
MODELS = {
    "BartForConditionalGeneration": SEQ2SEQ,
    "BartForSequenceClassification": {**SEQ2SEQ, "num_labels": 4},
    "MBartForConditionalGeneration": {**SEQ2SEQ, "decoder_start_token_id": 2, "scale_embedding": True},
    "M2M100ForConditionalGeneration": {**SEQ2SEQ, **NARROW_DECODER},
    "PegasusForConditionalGeneration": {**SEQ2SEQ, "activation_function": "relu", "scale_embedding": True},
    "MarianMTModel": {
        **SEQ2SEQ,
        **NARROW_DECODER,
        "activation_function": "swish",
        "scale_embedding": True,
        "pad_token_id": 40,
        "decoder_start_token_id": 40,
        "eos_token_id": 2,
    },
    "WhisperForConditionalGeneration": WHISPER,
    "T5ForConditionalGeneration": T5,
    "MT5ForConditionalGeneration": T5,
    **{
        family + head: {**settings, **options}
        for family, settings in (
            ("Roberta", {**ENCODER, "type_vocab_size": 1}),
            ("DistilBert", DISTILBERT),
            ("Albert", {**ENCODER, "embedding_size": 10}),
            ("ModernBert", MODERNBERT),
        )
        for head, options in HEADS.items()
    },
    # Activations of heads that differ from those of the encoder.
    **{
        f"ModernBert{head}": {
            **MODERNBERT,
            **HEADS[head],
            "hidden_activation": "silu",
            "classifier_activation": "relu",
        }
        for head in HEADS
        if head != "Model"
    },
    "RobertaForMaskedLM": {**ENCODER, "type_vocab_size": 1, "hidden_act": "relu"},
    "LlamaForCausalLM": {
        **DECODER,
        "tie_word_embeddings": True,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 50.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    },
    "MistralForCausalLM": {**DECODER, "sliding_window": 4},
    "Qwen2ForCausalLM": {
        **QWEN,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 50.0,
            "factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    },
    "Qwen3ForCausalLM": QWEN,
    "SmolLM3ForCausalLM": {**DECODER, "no_rope_layer_interval": 2},
    "Phi3ForCausalLM": {
        **{name: value for name, value in DECODER.items() if name != "head_dim"},
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "sliding_window": 4,
        "partial_rotary_factor": 0.7,
        "original_max_position_embeddings": 32,
        "rope_parameters": {
            "rope_type": "longrope",
            "rope_theta": 50.0,
            "short_factor": [1.0, 1.5],
            "long_factor": [2.0, 3.0],
            "original_max_position_embeddings": 32,
        },
    },
    "GemmaForCausalLM": DECODER,
    "Gemma2ForCausalLM": {**GEMMA, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0},
    "Gemma3ForCausalLM": {
        **GEMMA,
        "sliding_window_pattern": 3,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    },
    "BertForMaskedLM": ENCODER,
    "XLMRobertaForMaskedLM": {**ENCODER, "type_vocab_size": 1},
    "CamembertForMaskedLM": {**ENCODER, "type_vocab_size": 1},
}


def rows(random: np.random.Generator, pad_id: int, lengths: tuple[int, ...]) -> np.ndarray:
    """Random ids, padded on the right."""
    ids = random.integers(3, 40, (len(lengths), max(lengths)))
    return np.where(np.arange(max(lengths)) < np.array(lengths)[:, None], ids, pad_id)


def randomise(model: torch.nn.Module) -> None:
    """Move weights that begin as zeros or ones from them."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.2 * torch.randn_like(parameter))
        if hasattr(model, "final_logits_bias"):
            model.final_logits_bias.normal_()


def outputs(model: torch.nn.Module, random: np.random.Generator) -> dict[str, np.ndarray]:
    """Inputs of a model, and its outputs for them."""
    config = model.config
    if config.model_type == "whisper":
        return outputs_of_audio(model, random)
    ids = rows(random, config.pad_token_id, (11, 6, 9))
    mask = torch.tensor((ids != config.pad_token_id).astype("int64"))
    is_classifier = hasattr(model, "classification_head")
    if is_classifier:  # it reads the state at the end token
        ids[np.arange(len(ids)), mask.sum(1) - 1] = config.eos_token_id
    if not config.is_encoder_decoder or is_classifier:
        found = model(input_ids=torch.tensor(ids), attention_mask=mask)
        if hasattr(found, "start_logits"):
            return {"ids": ids, "outputs": torch.stack([found.start_logits, found.end_logits], 1).numpy()}
        if type(model).__name__.endswith("ForCausalLM"):
            # `transformers` continues prompts that are padded on the left.
            prompts = np.stack([np.roll(row, (row == config.pad_token_id).sum()) for row in ids])
            return {"ids": ids, "outputs": found[0].numpy(), **generated(model, prompts, prompts.shape[1])}
        return {"ids": ids, "outputs": found[0].numpy()}
    starts = np.full((3, 1), config.decoder_start_token_id)
    target = np.concatenate([starts, rows(random, config.pad_token_id, (7, 7, 7))], axis=1)
    found = model(input_ids=torch.tensor(ids), attention_mask=mask, decoder_input_ids=torch.tensor(target))
    return {"ids": ids, "target": target, "outputs": found.logits.numpy(), **generated(model, ids, 1)}


def long_outputs(model: torch.nn.Module, random: np.random.Generator) -> dict[str, np.ndarray]:
    """The outputs of a Phi-3, and the ids that it generates, for texts that need its long factors."""
    ids = rows(random, model.config.pad_token_id, (LONG, LONG))
    found = model(input_ids=torch.tensor(ids))
    long = {"ids": ids, "outputs": found.logits.numpy(), **generated(model, ids, LONG)}
    return {f"long_{name}": array for name, array in long.items()}


def outputs_of_audio(model: torch.nn.Module, random: np.random.Generator) -> dict[str, np.ndarray]:
    """Frames (B, T, F) and target ids of a Whisper, and its outputs for them."""
    config = model.config
    shape = (3, 2 * config.max_source_positions, config.num_mel_bins)
    frames = random.normal(size=shape).astype("float32")
    starts = np.full((3, 1), config.decoder_start_token_id)
    target = np.concatenate([starts, random.integers(3, 40, (3, 6))], axis=1)
    features = torch.tensor(frames).transpose(1, 2)
    found = model(input_features=features, decoder_input_ids=torch.tensor(target))
    # Whisper's own `generate` adds the tokens of a language and a task.
    generate = transformers.GenerationMixin.generate
    options = {"max_new_tokens": NEW_TOKENS, "suppress_tokens": [config.decoder_start_token_id]}
    searches = {
        name: generate(model, features, do_sample=False, **search, **options)[:, 1:].numpy()
        for name, search in SEARCHES.items()
    }
    return {"frames": frames, "target": target, "outputs": found.logits.numpy(), **searches}


def generated(model: torch.nn.Module, ids: np.ndarray, start: int) -> dict[str, np.ndarray]:
    """The ids that greedy and beam search generate from index `start` on."""
    config = model.config
    never = {config.pad_token_id, getattr(config, "decoder_start_token_id", None)} - {
        config.eos_token_id,
        None,
    }
    options = {
        "attention_mask": torch.tensor((ids != config.pad_token_id).astype("int64")),
        "max_new_tokens": NEW_TOKENS,
        "do_sample": False,
        "forced_eos_token_id": None,
        "forced_bos_token_id": None,
        "suppress_tokens": sorted(never),  # padding and the start token are never generated here
    }
    return {
        name: model.generate(torch.tensor(ids), **search, **options)[:, start:].numpy()
        for name, search in SEARCHES.items()
    }


LINES = [
    "la casa azul", "el perro come el pan", "where is the station", "the dog eats the bread", "the house is blue",
    "где дом", "дом и хлеб", "家 犬 青い家", "犬はパンを食べる",
]  # fmt: skip
TEXTS = [
    "la casa azul", "  the   house\tis blue", "где дом 家 犬 👍", "ﬁ el perro\ncome", "unknown: ☃ ☃☃ 12",
    "a\u200bb \x07 pan",
]  # fmt: skip
NORMALIZED = {"\t": " ", "\n": " ", "\x07": "", "\u200b": " ", "ﬁ": "fi", "Ａ": "A"}
# The class of the model and that of the tokenizer, the pairs of languages, and the type of the SentencePiece model.
MULTILINGUAL = {
    "MBart25": ("MBartForConditionalGeneration", "MBartTokenizer", ("en_XX ro_RO", "es_XX de_DE"), "unigram"),
    "MBart50": (
        "MBartForConditionalGeneration",
        "MBart50Tokenizer",
        ("en_XX sl_SI", "ru_RU es_XX"),
        "unigram",
    ),
    "NLLB": (
        "M2M100ForConditionalGeneration",
        "NllbTokenizer",
        ("spa_Latn eng_Latn", "eng_Latn zho_Hans"),
        "bpe",
    ),
    "M2M100": ("M2M100ForConditionalGeneration", "M2M100Tokenizer", ("es en", "ru zh"), "bpe"),
}


def sentence_piece(model_type: str) -> bytes:
    """A small SentencePiece model with a small table of normalization."""
    model = io.BytesIO()
    with tempfile.NamedTemporaryFile("w", suffix=".tsv", encoding="utf-8") as table:
        for characters, replacement in NORMALIZED.items():
            sides = (" ".join(f"{ord(each):X}" for each in side) for side in (characters, replacement))
            table.write("\t".join(sides) + "\n")
        table.flush()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(LINES * 8),
            model_writer=model,
            model_type=model_type,
            vocab_size=90,
            hard_vocab_limit=False,
            normalization_rule_tsv=table.name,
            minloglevel=2,
        )
    return model.getvalue()


def add_languages(folder: pathlib.Path, codes: list[str]) -> None:
    """Add NLLB-200's languages to `tokenizer.json` before the mask token, as in the published one."""
    content = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    *added, mask = content["added_tokens"]
    for code in codes:
        vocabulary[code] = len(vocabulary)
        added.append({**added[0], "content": code, "id": vocabulary[code]})
    vocabulary["<mask>"] = mask["id"] = len(vocabulary)
    content["added_tokens"] = [*added, mask]
    (folder / "tokenizer.json").write_text(json.dumps(content))
    config = {"tokenizer_class": "NllbTokenizer", "additional_special_tokens": codes}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def write_tokenizer(folder: pathlib.Path, name: str, pairs: tuple[str, ...], model_type: str) -> object:
    """Write the files of a tokenizer, and read them."""
    model = sentence_piece(model_type)
    (folder / "sentencepiece.bpe.model").write_bytes(model)
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name}))
    if name == "M2M100Tokenizer":
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        pieces = [processor.id_to_piece(id_) for id_ in range(3, processor.vocab_size())]
        pieces = ["<s>", "<pad>", "</s>", "<unk>", *sorted(pieces)[:-5]]
        (folder / "vocab.json").write_text(json.dumps({piece: id_ for id_, piece in enumerate(pieces)}))
    else:
        getattr(transformers, name).from_pretrained(folder).save_pretrained(folder)
        if name == "NllbTokenizer":
            add_languages(folder, sorted({code for pair in pairs for code in pair.split()} | {"fra_Latn"}))
    return getattr(transformers, name).from_pretrained(folder)


def translations(
    model: torch.nn.Module, tokenizer: object, pairs: tuple[str, ...]
) -> list[dict[str, object]]:
    """The source ids of texts, what the model generates, and the losses of copies, for each pair of languages."""
    cases = []
    is_language = re.compile("__[a-z]+__|[a-z]{2,3}_[A-Z][A-Za-z]+").fullmatch
    languages = [token for token in tokenizer.get_vocab() if is_language(token)]
    languages += list(getattr(tokenizer, "lang_token_to_id", ()))
    for source, target in map(str.split, pairs):
        tokenizer.src_lang, tokenizer.tgt_lang = source, target
        language = tokenizer.get_lang_id(target) if hasattr(tokenizer, "get_lang_id") else None
        language = tokenizer.convert_tokens_to_ids(target) if language is None else language
        is_start = type(tokenizer).__name__ == "MBartTokenizer"
        if is_start:
            first = {"decoder_start_token_id": language}
        else:
            starts = [[model.config.decoder_start_token_id, language]] * len(TEXTS)
            first = {"decoder_input_ids": torch.tensor(starts)}
        begin = 1 if is_start else 2
        inputs = tokenizer(TEXTS, padding=True, return_tensors="pt")
        suppressed = {*tokenizer.all_special_ids, *tokenizer.convert_tokens_to_ids(languages)}
        suppressed |= {*range(len(tokenizer), model.config.vocab_size), model.config.pad_token_id}
        options = {
            **inputs,
            **first,
            "max_new_tokens": NEW_TOKENS,
            "do_sample": False,
            "suppress_tokens": sorted(suppressed - {model.config.eos_token_id}),
            "forced_eos_token_id": None,
            "forced_bos_token_id": None,
        }
        beam = {"num_beams": 3, "length_penalty": 0.0, "early_stopping": "never"}
        pairs_of_ids = [tokenizer(text, text_target=text, return_tensors="pt") for text in TEXTS]
        cases.append(
            {
                "source_language": source,
                "target_language": target,
                "source_ids": [tokenizer(text)["input_ids"] for text in TEXTS],
                "greedy": model.generate(**options, num_beams=1)[:, begin:].tolist(),
                "beam": model.generate(**options, **beam)[:, begin:].tolist(),
                "losses": [model(**ids).loss.item() for ids in pairs_of_ids],
            }
        )
    return cases


def write_multilingual(folder: pathlib.Path, name: str) -> torch.nn.Module:
    """Write a translation model of many languages, its tokenizer and translations."""
    class_name, tokenizer_name, pairs, model_type = MULTILINGUAL[name]
    folder.mkdir(parents=True)
    tokenizer = write_tokenizer(folder, tokenizer_name, pairs, model_type)
    settings = {
        **SEQ2SEQ,
        "vocab_size": len(tokenizer) + 3,
        "max_position_embeddings": 67,
        "decoder_start_token_id": 2,
    }
    if name == "MBart25":
        settings["decoder_start_token_id"] = tokenizer.convert_tokens_to_ids(pairs[0].split()[1])
    if name == "M2M100":
        settings["vocab_size"] += len(tokenizer.lang_code_to_id)
    kind = getattr(transformers, class_name)
    model = kind(kind.config_class(**settings)).eval()
    randomise(model)
    with torch.no_grad():  # so that a token depends on the source more than on the token before it
        for parameter in (each for each_name, each in model.named_parameters() if "layers" in each_name):
            parameter.mul_(4)
    model.save_pretrained(folder)
    with torch.no_grad():
        content = {"texts": TEXTS, "cases": translations(model, tokenizer, pairs)}
    (folder / "translations.json").write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    return model


def main() -> None:
    """Write a folder for each model."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "folder", type=pathlib.Path, help="the folder of the folders; those in it are replaced"
    )
    parser.add_argument("names", nargs="*", help="the folders to write, by default all")
    chosen = parser.parse_args()
    folder = chosen.folder
    transformers.utils.logging.disable_progress_bar()
    for name in chosen.names or (*MODELS, *MULTILINGUAL):
        torch.manual_seed(0)
        shutil.rmtree(folder / name, ignore_errors=True)
        if name in MULTILINGUAL:
            model = write_multilingual(folder / name, name)
        else:
            kind = getattr(transformers, name)
            model = kind(kind.config_class(**MODELS[name])).eval()
            randomise(model)
            model.save_pretrained(folder / name)
        (folder / name / "generation_config.json").unlink(missing_ok=True)
        with torch.no_grad():
            random = np.random.default_rng(0)
            arrays = outputs(model, random)
            if name == "Phi3ForCausalLM":
                arrays |= long_outputs(model, random)
            np.savez_compressed(folder / name / "expected.npz", **arrays)
        print(f"{name}: {model.num_parameters():,} parameters")


if __name__ == "__main__":
    main()
