"""Write the effects of settings of folders in `transformers`: the values in `tests/interop/settings`.

    .venv-bench/bin/python benchmarks/parity/settings_of_folders.py tests/interop/settings

It writes `keys.json`, the keys of each `config.json`; `whisper.json`, settings of generation and the ids before a text;
and the folder `fp8` of a model with quantized weights and what it computes.
"""

import argparse
import json
import os
import pathlib
import shutil

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from small_folders import DECODER, WHISPER, randomise
from transformers.integrations.finegrained_fp8 import Fp8Dequantize

TYPES = (
    "albert", "bart", "bert", "camembert", "distilbert", "gemma", "gemma2", "gemma3_text", "gpt2", "llama", "m2m_100",
    "marian", "mbart", "mistral", "modernbert", "mt5", "openai-gpt", "pegasus", "phi3", "qwen2", "qwen3", "roberta",
    "smollm3", "t5", "vit", "whisper", "xlm-roberta",
)  # fmt: skip
# Settings of generation, with the ids of a small vocabulary.
_IDS = {
    "lang_to_id": {"<|en|>": 20, "<|es|>": 21, "<|zh|>": 22},
    "task_to_id": {"transcribe": 23, "translate": 24},
    "no_timestamps_token_id": 25,
}
GENERATION = [
    {**_IDS, "language": "en"},
    {**_IDS, "language": "<|es|>", "task": "translate"},
    {**_IDS, "language": "spanish"},
    {**_IDS, "language": "Mandarin", "task": "transcribe"},
    {**_IDS, "forced_decoder_ids": [[1, 21], [2, 24]]},
    {**_IDS, "forced_decoder_ids": [[1, 21], [2, 23], [3, 25]]},
    {**_IDS, "forced_decoder_ids": [[1, 21], [2, 24]], "language": "zh"},
    {"forced_decoder_ids": [[1, 25]], "no_timestamps_token_id": 25},
    {"no_timestamps_token_id": 25},
    {},
]
BLOCK = 8  # rows and columns of a weight with one scale


def keys() -> dict[str, list[str]]:
    """Return the keys that `transformers` writes for each model type."""
    return {name: sorted(transformers.CONFIG_MAPPING[name]().to_dict()) for name in TYPES}


def prefix(settings: dict[str, object]) -> list[int]:
    """Return the ids that Whisper's `generate` puts between the start token and a text."""
    model = transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(**WHISPER)).eval()
    model.generation_config.update(return_timestamps=False)
    for name, value in settings.items():
        setattr(model.generation_config, name, value)
    found: list[list[int]] = []

    def record(module: object, args: object, kwargs: dict[str, torch.Tensor]) -> None:
        found.append(kwargs["input_ids"][0].tolist())

    model.model.decoder.register_forward_pre_hook(record, with_kwargs=True)
    features = torch.zeros(1, WHISPER["num_mel_bins"], 2 * WHISPER["max_source_positions"])
    model.generate(features, max_new_tokens=1, do_sample=False)
    return found[0][1:]


def write_fp8(folder: pathlib.Path) -> None:
    """Write a model with weights in FP8, a scale for each block beside them, and its logits."""
    config = transformers.LlamaConfig(
        **{**DECODER, "hidden_size": 24, "intermediate_size": 16, "head_dim": 8}
    )
    model = transformers.LlamaForCausalLM(config).eval()
    randomise(model)
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    tensors = {}
    for name, values in load_file(folder / "model.safetensors").items():
        if "_proj." not in name:
            tensors[name] = values
            continue
        rows, columns = values.shape
        grid = torch.zeros(-(-rows // BLOCK), -(-columns // BLOCK))
        quantized = torch.zeros(values.shape, dtype=torch.float8_e4m3fn)
        for i in range(grid.shape[0]):
            for j in range(grid.shape[1]):
                block = np.s_[i * BLOCK : (i + 1) * BLOCK, j * BLOCK : (j + 1) * BLOCK]
                grid[i, j] = values[block].abs().max() / 448
                quantized[block] = (values[block] / grid[i, j]).to(torch.float8_e4m3fn)
        tensors[name], tensors[f"{name}_scale_inv"] = quantized, grid
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    content = json.loads((folder / "config.json").read_text())
    content["quantization_config"] = {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": [BLOCK, BLOCK],
    }
    (folder / "config.json").write_text(json.dumps(content, indent=2))
    ids = np.random.default_rng(0).integers(3, 40, (2, 9))
    dequantize = Fp8Dequantize(None)._dequantize_one
    model.load_state_dict(
        {
            name: dequantize(values, tensors[f"{name}_scale_inv"], torch.float32)
            if f"{name}_scale_inv" in tensors
            else values
            for name, values in tensors.items()
            if not name.endswith("_scale_inv")
        }
    )
    with torch.no_grad():
        logits = model(torch.tensor(ids)).logits.numpy()
    np.savez_compressed(folder / "expected.npz", ids=ids, outputs=logits)


def main() -> None:
    """Write the values."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=pathlib.Path, help="the folder to write")
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    (folder / "keys.json").write_text(json.dumps(keys(), indent=1) + "\n")
    cases = [{"settings": settings, "prefix": prefix(settings)} for settings in GENERATION]
    (folder / "whisper.json").write_text(json.dumps(cases, indent=1) + "\n")
    write_fp8(folder / "fp8")


if __name__ == "__main__":
    main()
