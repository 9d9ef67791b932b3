import io
import json
import os
import pickle
import zipfile

import ml_dtypes
import numpy as np
import pytest
from keras import ops

from keras_transformer import interop
from keras_transformer.interop.pytorch_files import tensors_of_pytorch_file
from keras_transformer.models import GPT
from tests.interop.pytorch_writer import Tensor, as_tensors, dump

safetensors = pytest.importorskip("safetensors.numpy")
formats = pytest.mark.parametrize("is_legacy", [False, True], ids=["zip", "legacy"])

VALUES = np.arange(24, dtype="float32")
IDS = np.array([[5, 6, 7, 1, 9], [8, 3, 4, 2, 2]])


def write(path, tensors, is_legacy=False):
    path.write_bytes(dump(tensors, is_legacy))
    return path


@formats
def test_tensors_of_each_dtype_are_read(tmp_path, is_legacy):
    arrays = {name: VALUES.reshape(2, 3, 4).astype(name) for name in ("float32", "float16", "int64")}
    arrays["bfloat16"] = VALUES.astype(ml_dtypes.bfloat16)
    found = tensors_of_pytorch_file(write(tmp_path / "model.bin", as_tensors(arrays), is_legacy))
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert found[name].shape == array.shape
        assert found[name].read().dtype == array.dtype
        np.testing.assert_array_equal(found[name].read(), array)


@formats
def test_tensors_may_share_a_storage_at_offsets_with_strides(tmp_path, is_legacy):
    tensors = {
        "whole": Tensor(VALUES),
        "part": Tensor(VALUES, 12, (3, 4), (4, 1)),
        "transposed": Tensor(VALUES, 0, (4, 6), (1, 4)),
        "empty": Tensor(VALUES, 0, (0, 3), (3, 1)),
        "scalar": Tensor(VALUES, 7, (), ()),
    }
    found = tensors_of_pytorch_file(write(tmp_path / "model.bin", tensors, is_legacy))
    np.testing.assert_array_equal(found["part"].read(), VALUES[12:].reshape(3, 4))
    np.testing.assert_array_equal(found["transposed"].read(), VALUES.reshape(6, 4).T)
    assert found["empty"].read().shape == (0, 3)
    assert found["scalar"].read() == 7


class Hostile:
    def __reduce__(self):
        return os.system, ("touch hacked",)


class Evaluated:
    def __reduce__(self):
        return eval, ("1",)


@pytest.mark.parametrize(("value", "name"), [(Hostile(), "posix.system"), (Evaluated(), "__builtin__.eval")])
@formats
def test_unexpected_globals_are_rejected_by_name_and_never_called(
    tmp_path, monkeypatch, is_legacy, value, name
):
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path / "model.bin", {"weight": Tensor(VALUES), "other": value}, is_legacy)
    with pytest.raises(
        ValueError, match=rf"model.bin` must be a dictionary of tensors .*Received: the global {name}"
    ):
        tensors_of_pytorch_file(path)
    assert not (tmp_path / "hacked").exists()


def test_globals_before_the_tensors_are_rejected(tmp_path):
    path = tmp_path / "model.bin"
    path.write_bytes(pickle.dumps(Hostile()))
    with pytest.raises(ValueError, match=r"Received: the global posix.system"):
        tensors_of_pytorch_file(path)


INVALID = {
    "a list": [Tensor(VALUES)],
    "'nested', a dict": {"nested": {"weight": Tensor(VALUES)}},
    "outside its 24 values": {"weight": Tensor(VALUES, 12, (4, 4), (4, 1))},
    r"a tensor of shape \(2,\) outside": {"weight": Tensor(VALUES, 1, (2,), (-1,))},
}


@pytest.mark.parametrize("message", INVALID)
@formats
def test_invalid_contents_are_rejected(tmp_path, message, is_legacy):
    with pytest.raises(ValueError, match=message):
        tensors_of_pytorch_file(write(tmp_path / "model.bin", INVALID[message], is_legacy))


@formats
def test_every_truncated_file_is_rejected(tmp_path, is_legacy):
    path = write(tmp_path / "model.bin", as_tensors({"weight": VALUES}), is_legacy)
    content = path.read_bytes()
    for length in range(0, len(content) - 1, 7):
        path.write_bytes(content[:length])
        with pytest.raises(ValueError, match="must be a dictionary of tensors"):
            tensors_of_pytorch_file(path)


def test_records_with_a_wrong_checksum_are_rejected(tmp_path):
    path = write(tmp_path / "model.bin", as_tensors({"weight": VALUES}))
    with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as archive:
        start = archive.getinfo("model/data/0").header_offset + 60
    content = bytearray(path.read_bytes())
    content[start] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"model.bin` must be undamaged. Received: Bad CRC-32"):
        tensors_of_pytorch_file(path)["weight"].read()


@pytest.fixture
def saved(tmp_path):
    """Return a model, its folder and its weights."""
    model = GPT(12, 1, 2, 8, 16, max_length=16, end_id=11)
    folder = interop.to_hugging_face(model, tmp_path / "model")
    arrays = safetensors.load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    return model, folder, arrays


@formats
def test_a_model_is_read_from_a_pytorch_file(saved, is_legacy):
    model, folder, arrays = saved
    write(folder / "pytorch_model.bin", as_tensors(arrays), is_legacy)
    loaded = interop.from_hugging_face(folder)
    np.testing.assert_allclose(ops.convert_to_numpy(loaded(IDS)), ops.convert_to_numpy(model(IDS)), atol=1e-6)


def test_a_model_is_read_from_shards_of_pytorch_files(saved):
    model, folder, arrays = saved
    names = sorted(arrays)
    shards = {"pytorch_model-00001-of-00002.bin": names[:4], "pytorch_model-00002-of-00002.bin": names[4:]}
    for file, part in shards.items():
        write(folder / file, as_tensors({name: arrays[name] for name in part}))
    index = {"weight_map": {name: file for file, part in shards.items() for name in part}}
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    loaded = interop.from_hugging_face(folder)
    np.testing.assert_allclose(ops.convert_to_numpy(loaded(IDS)), ops.convert_to_numpy(model(IDS)), atol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", ml_dtypes.bfloat16], ids=["float16", "bfloat16"])
def test_half_precision_files_are_read(saved, dtype):
    model, folder, arrays = saved
    safetensors.save_file(
        {name: each.astype(dtype) for name, each in arrays.items()}, folder / "model.safetensors"
    )
    loaded = interop.from_hugging_face(folder)
    np.testing.assert_allclose(ops.convert_to_numpy(loaded(IDS)), ops.convert_to_numpy(model(IDS)), atol=0.02)
    write(
        folder / "pytorch_model.bin", as_tensors({name: each.astype(dtype) for name, each in arrays.items()})
    )
    (folder / "model.safetensors").unlink()
    again = interop.from_hugging_face(folder)
    np.testing.assert_array_equal(ops.convert_to_numpy(again(IDS)), ops.convert_to_numpy(loaded(IDS)))
