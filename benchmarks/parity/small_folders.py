"""Small models of `transformers` with random weights, and what they compute: the folders in `tests/interop/folders`.

    .venv-bench/bin/python benchmarks/parity/small_folders.py tests/interop/folders

Where published weights cannot be downloaded, tests read these folders. No two sizes are equal by chance.
"""

import argparse
import os
import pathlib
import shutil

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import numpy as np
import torch
import transformers

NEW_TOKENS = 8
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
    "M2M100ForConditionalGeneration": SEQ2SEQ,
    "PegasusForConditionalGeneration": {**SEQ2SEQ, "activation_function": "relu", "scale_embedding": True},
    "MarianMTModel": {
        **SEQ2SEQ,
        "activation_function": "swish",
        "scale_embedding": True,
        "pad_token_id": 40,
        "decoder_start_token_id": 40,
        "eos_token_id": 2,
    },
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
    ids = rows(random, config.pad_token_id, (11, 6, 9))
    mask = torch.tensor((ids != config.pad_token_id).astype("int64"))
    is_classifier = hasattr(model, "classification_head")
    if is_classifier:  # it reads the state at the end token
        ids[np.arange(len(ids)), mask.sum(1) - 1] = config.eos_token_id
    if not config.is_encoder_decoder or is_classifier:
        found = model(input_ids=torch.tensor(ids), attention_mask=mask)
        if hasattr(found, "start_logits"):
            return {"ids": ids, "outputs": torch.stack([found.start_logits, found.end_logits], 1).numpy()}
        return {"ids": ids, "outputs": found[0].numpy()}
    starts = np.full((3, 1), config.decoder_start_token_id)
    target = np.concatenate([starts, rows(random, config.pad_token_id, (7, 7, 7))], axis=1)
    found = model(input_ids=torch.tensor(ids), attention_mask=mask, decoder_input_ids=torch.tensor(target))
    options = {
        "attention_mask": mask,
        "max_new_tokens": NEW_TOKENS,
        "do_sample": False,
        "forced_eos_token_id": None,
        "forced_bos_token_id": None,
        # Padding and the start token are never generated here.
        "suppress_tokens": sorted(
            {config.pad_token_id, config.decoder_start_token_id} - {config.eos_token_id}
        ),
    }
    greedy = model.generate(torch.tensor(ids), num_beams=1, **options)[:, 1:]
    beam = {"num_beams": 3, "length_penalty": 0.0, "early_stopping": "never"}
    beams = model.generate(torch.tensor(ids), **beam, **options)[:, 1:]
    return {
        "ids": ids,
        "target": target,
        "outputs": found.logits.numpy(),
        "greedy": greedy.numpy(),
        "beam": beams.numpy(),
    }


def main() -> None:
    """Write a folder for each model."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "folder", type=pathlib.Path, help="the folder of the folders; those in it are replaced"
    )
    parser.add_argument("--only", nargs="+", default=list(MODELS), help="the models (default: all)")
    arguments = parser.parse_args()
    folder = arguments.folder
    transformers.utils.logging.disable_progress_bar()
    for name in arguments.only:
        torch.manual_seed(0)
        kind = getattr(transformers, name)
        model = kind(kind.config_class(**MODELS[name])).eval()
        randomise(model)
        shutil.rmtree(folder / name, ignore_errors=True)
        model.save_pretrained(folder / name)
        (folder / name / "generation_config.json").unlink(missing_ok=True)
        with torch.no_grad():
            np.savez_compressed(folder / name / "expected.npz", **outputs(model, np.random.default_rng(0)))
        print(f"{name}: {model.num_parameters():,} parameters")


if __name__ == "__main__":
    main()
