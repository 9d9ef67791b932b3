"""Small models of entailment of `transformers`, and the labels that its zero-shot classification gives to texts.

    .venv-bench/bin/python benchmarks/parity/zero_shot.py tests/pipelines/words tests/pipelines/zero_shot

The first folder has the tokenizers, of `words.py`. Each folder that is written has random weights and `expected.json`:
rows of a text, the arguments of the call, and the labels with their scores. The order of classes differs.
"""

import argparse
import itertools
import json
import os
import pathlib
import shutil

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
import transformers

CLASSES = {
    "Bert": ("BertChinese", ["contradiction", "neutral", "entailment"]),
    "Bart": ("Roberta", ["ENTAILMENT", "neutral", "contradiction"]),
    "DistilBert": ("DistilBert", ["entailment", "not_entailment"]),
}
SIZES = {
    "Bert": {"hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 14},
    "Bart": {
        "d_model": 12,
        **{f"{part}_layers": 1 for part in ("encoder", "decoder")},
        **{f"{part}_attention_heads": 2 for part in ("encoder", "decoder")},
        **{f"{part}_ffn_dim": 14 for part in ("encoder", "decoder")},
        "init_std": 0.3,
    },
    "DistilBert": {"dim": 12, "n_layers": 1, "n_heads": 2, "hidden_dim": 14},
}
LENGTH = 60
TEXTS = [
    "said Ada Lovelace",
    "it's 3.14 km!",
    "Ada lives in London. " * 15,  # is truncated
    "Who?",
]
LABELS = [["Ada", "London", "in"], ["lives"], ["km", "Who lives in London", "said", "O'Brien"]]
TEMPLATES = [None, "{}", "said {}!"]


def main() -> None:
    """Write the folders."""
    parser = argparse.ArgumentParser()
    parser.add_argument("tokenizers", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    options = parser.parse_args()
    for prefix, (tokenizer_of, classes) in CLASSES.items():
        source = options.tokenizers / f"{tokenizer_of}ForTokenClassification"
        folder = options.folder / f"{prefix}ForSequenceClassification"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        shutil.copy(source / "tokenizer.json", folder)
        settings = json.loads((source / "tokenizer_config.json").read_text())
        (folder / "tokenizer_config.json").write_text(json.dumps({**settings, "model_max_length": LENGTH}))
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        ids = {
            "pad_token_id": tokenizer.pad_token_id,
            "bos_token_id": tokenizer.cls_token_id,
            "eos_token_id": tokenizer.sep_token_id,
        }
        if prefix == "Bart":
            ids["decoder_start_token_id"] = tokenizer.sep_token_id
        named = {
            "id2label": dict(enumerate(classes)),
            "label2id": {name: id_ for id_, name in enumerate(classes)},
        }
        torch.manual_seed(0)
        config = getattr(transformers, f"{prefix}Config")(
            vocab_size=len(tokenizer),
            max_position_embeddings=LENGTH,
            initializer_range=0.5,
            **ids,
            **named,
            **SIZES[prefix],
        )
        model = getattr(transformers, f"{prefix}ForSequenceClassification")(config).eval()
        model.save_pretrained(folder)
        pipeline = transformers.pipeline(
            "zero-shot-classification", model=model, tokenizer=tokenizer, device="cpu"
        )
        rows = []
        for labels, template, multi_label, text in itertools.product(LABELS, TEMPLATES, (False, True), TEXTS):
            arguments = {"candidate_labels": labels, "multi_label": multi_label}
            arguments |= {} if template is None else {"hypothesis_template": template}
            found = pipeline(text, **arguments)
            rows.append([text, arguments, [*map(list, zip(found["labels"], found["scores"], strict=True))]])
        (folder / "expected.json").write_text(json.dumps(rows))
        print(folder.name, len(rows))


if __name__ == "__main__":
    main()
