"""Models loaded from `tests/interop/folders` equal the outputs of `transformers`.

`benchmarks/parity/small_folders.py` writes the folders, with inputs and outputs.
"""

import dataclasses
import functools
import json
import pathlib
import re

import numpy as np
import pytest
from keras import ops

from keras_transformer import generation, interop
from keras_transformer.interop.tensors import tensors_of
from tests import arrays

FOLDERS = sorted((pathlib.Path(__file__).parent / "folders").iterdir())
GENERATING = [folder for folder in FOLDERS if "greedy" in arrays.load(folder / "expected.npz")]
DECODERS = [folder for folder in GENERATING if folder.name.endswith("ForCausalLM")]
SEARCHES = {"greedy": generation.Greedy(), "beam": generation.Beam(3, length_penalty=0.0)}
each_folder = pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
each_decoder = pytest.mark.parametrize("folder", DECODERS, ids=lambda folder: folder.name)
# Each compiles a loop: of the decoder-only families, the quick tests run one with windows and all norms.
SLOW = {folder.name for folder in DECODERS} - {"Gemma3ForCausalLM"}
each_generating = pytest.mark.parametrize(
    "folder",
    [
        pytest.param(folder, marks=[pytest.mark.slow] * (folder.name in SLOW), id=folder.name)
        for folder in GENERATING
    ],
)


@functools.cache
def model_of(folder):
    """Return the model of a folder, which the tests share and do not change."""
    return interop.from_hugging_face(folder)


def inputs_of(expected):
    """Return the inputs of a call."""
    if "frames" in expected:
        return {"frames": expected["frames"], "target_ids": expected["target"]}
    if "target" in expected:
        return {"source_ids": expected["ids"], "target_ids": expected["target"]}
    return expected["ids"]


def pad_id_of(folder):
    """Return the padding id in `config.json`."""
    return json.loads((folder / "config.json").read_text())["pad_token_id"]


def assert_equal_until_the_end(model, found, expected):
    """Compare generated ids up to the end token of each row."""
    for ids, reference in zip(np.asarray(found).tolist(), expected.tolist(), strict=True):
        end = reference.index(model.end_id) + 1 if model.end_id in reference else len(reference)
        assert ids[:end] == reference[:end]


@each_folder
def test_outputs_equal_transformers(folder):
    model, expected = model_of(folder), arrays.load(folder / "expected.npz")
    found = ops.convert_to_numpy(model(inputs_of(expected)))
    if (
        "target" not in expected and found.shape[:2] == expected["ids"].shape
    ):  # outputs at padding are undefined
        real = expected["ids"] != pad_id_of(folder)
        found, outputs = found[real], expected["outputs"][real]
    else:
        outputs = expected["outputs"]
    found = np.where(found < -1e8, outputs, found)  # spans never begin at padding
    # The weights of MBart50 are larger, and so are the rounding errors.
    np.testing.assert_allclose(found, outputs, rtol=1e-4, atol=1e-4 if folder.name == "MBart50" else 1e-5)


@pytest.mark.slow_variants
@pytest.mark.parametrize("search", SEARCHES)
@each_generating
def test_generated_ids_equal_transformers(folder, search):
    model, expected = model_of(folder), arrays.load(folder / "expected.npz")
    source = expected["frames" if "frames" in expected else "ids"]
    mask = None if "target" in expected else source != pad_id_of(folder)
    found = generation.generate(model, source, SEARCHES[search], max_new_tokens=8, padding_mask=mask).best
    assert_equal_until_the_end(model, found, expected[search])


def test_a_padding_token_within_a_text_is_read():
    folder = FOLDERS[0].with_name("Qwen2ForCausalLM")
    model, pad_id = interop.from_hugging_face(folder), pad_id_of(folder)
    assert model.pad_id is None
    found = ops.convert_to_numpy(model(np.array([[5, pad_id, 7, 9]])))
    # Of transformers 5.23, with a mask of ones.
    expected = [0.8374373, 0.0561628, -0.418888, -1.6783812, 1.045972, -0.5050379]
    np.testing.assert_allclose(found[0, -1, :6], expected, atol=1e-5)
    assert interop.from_hugging_face(folder, pad_id=pad_id).pad_id == pad_id


def test_texts_longer_than_the_original_length_need_long_factors():
    folder = FOLDERS[0].with_name("Phi3ForCausalLM")
    short, expected = model_of(folder), arrays.load(folder / "expected.npz")
    scaling = dataclasses.replace(short.scaling, use_long_factors=True)
    model = interop.from_hugging_face(folder, scaling=scaling, max_length=None)
    assert (short.max_length, model.max_length) == (32, 64)
    found = ops.convert_to_numpy(model(expected["long_ids"]))
    np.testing.assert_allclose(found, expected["long_outputs"], rtol=1e-4, atol=1e-5)
    ids = generation.generate(model, expected["long_ids"], max_new_tokens=8).best
    assert_equal_until_the_end(model, ids, expected["long_greedy"])
    with pytest.raises(ValueError, match="supported by Phi3ForCausalLM.*use_long_factors"):
        interop.to_hugging_face(model, "phi3", "phi3")
    with pytest.raises(ValueError, match="at most max_length=32 long"):
        short(expected["long_ids"])


@pytest.mark.slow_variants
@each_decoder
def test_prompts_padded_on_the_left_are_continued_alike(folder):
    model, expected = model_of(folder), arrays.load(folder / "expected.npz")
    pad_id = pad_id_of(folder)
    ids = np.stack([np.roll(row, (row == pad_id).sum()) for row in expected["ids"]])
    found = generation.generate(model, ids, max_new_tokens=8, padding_mask=ids != pad_id).best
    assert_equal_until_the_end(model, found, expected["greedy"])


@pytest.mark.slow_variants
@each_decoder
def test_cached_decoding_beyond_the_window_equals_uncached(folder):
    model = model_of(folder)
    ids = np.random.default_rng(0).integers(3, 40, (2, 13))
    expected = ops.convert_to_numpy(model(ids))
    cache, found = model.empty_cache(2, 13), []
    for start, end in ((0, 5), (5, 6), (6, 9), (9, 10), (10, 13)):
        positions = np.tile(np.arange(start, end), (2, 1))
        logits, cache = model.step(ids[:, start:end], cache, cache_index=start, positions=positions)
        found.append(ops.convert_to_numpy(logits))
    np.testing.assert_allclose(np.concatenate(found, axis=1), expected, rtol=1e-4, atol=1e-5)


@each_folder
def test_weights_are_written_as_they_were_read(folder, tmp_path):
    model, config = model_of(folder), json.loads((folder / "config.json").read_text())
    # mT5 is a T5 v1.1.
    model_type = {"mt5": "t5"}.get(config["model_type"], config["model_type"])
    written = interop.to_hugging_face(model, tmp_path / "model", model_type)
    assert interop.config_of(interop.from_hugging_face(written)) == interop.config_of(model)
    sizes = [name for name in config if name.endswith(("_ffn_dim", "_heads", "coder_layers"))]
    found = json.loads((written / "config.json").read_text())
    assert {name: found.get(name) for name in sizes} == {name: config[name] for name in sizes}
    before, after = tensors_of(folder), tensors_of(written)
    sinusoids = {name for name in before if re.search(r"embed_positions\.weights?$", name)}
    assert before.keys() - sinusoids <= after.keys()
    has_unused_rows = {"roberta", "xlm-roberta", "camembert", "bart", "mbart"}
    for name in before.keys() & after.keys():
        start = 2 if "position" in name and model_type in has_unused_rows else 0
        # Norms of Gemma are read as 1 + w.
        rounding = 1e-7 if model_type.startswith("gemma") and "norm" in name else 0
        np.testing.assert_allclose(
            after[name].read()[start:], before[name].read()[start:], rtol=0, atol=rounding
        )
