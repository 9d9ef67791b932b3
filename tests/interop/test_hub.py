import json

import numpy as np
import pytest
from keras import ops

from keras_transformer import interop
from keras_transformer.interop.hub import local_folder
from keras_transformer.models import GPT
from tests.hub import use_hub_at

huggingface_hub = pytest.importorskip("huggingface_hub")
constants = pytest.importorskip("huggingface_hub.constants")
safetensors = pytest.importorskip("safetensors.numpy")

NAME = "someone/small-gpt"
IDS = np.array([[5, 6, 7, 1, 9], [8, 3, 4, 2, 2]])


@pytest.fixture(scope="module")
def model():
    return GPT(12, 1, 2, 8, 16, max_length=16, end_id=11)


@pytest.fixture(scope="module")
def saved(model, tmp_path_factory):
    """The files of a model as `transformers` saves them."""
    folder = interop.to_hugging_face(model, tmp_path_factory.mktemp("saved") / "model")
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def offline(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def test_a_model_from_the_hub_equals_the_model_of_its_folder(hub, model, saved):
    hub.add(
        NAME, {**saved, "README.md": b"", "flax_model.msgpack": b"unused", "pytorch_model.bin": b"unused"}
    )
    loaded = interop.from_hugging_face(NAME)
    np.testing.assert_allclose(ops.convert_to_numpy(loaded(IDS)), ops.convert_to_numpy(model(IDS)), atol=1e-6)
    asked = {path.rpartition("/")[2] for _, path in hub.requests if "/resolve/" in path}
    assert asked == {"config.json", "model.safetensors"}


def test_a_second_call_does_not_download_again(hub, saved, tmp_path):
    hub.add(NAME, saved)
    first = local_folder(NAME, cache_dir=tmp_path / "mine")
    hub.requests.clear()
    assert local_folder(NAME, cache_dir=tmp_path / "mine") == first
    assert not [path for method, path in hub.requests if method == "GET" and "/resolve/" in path]


def test_a_revision_is_a_branch_a_tag_or_a_commit(hub, saved):
    commit = hub.add(NAME, saved)
    other = {**saved, "config.json": saved["config.json"].replace(b'"n_head": 2', b'"n_head": 4')}
    hub.models[NAME].commits["b" * 40] = other
    hub.models[NAME].references["v2"] = "b" * 40
    assert local_folder(NAME, revision="v2").name == "b" * 40
    assert local_folder(NAME).name == local_folder(NAME, revision=commit).name == commit
    assert interop.from_hugging_face(NAME, revision="v2").num_heads == 4
    with pytest.raises(ValueError, match=r"`revision` must be a branch, .*Received: revision='v3'"):
        local_folder(NAME, revision="v3")


def test_shards_are_downloaded_by_their_index(hub, saved):
    tensors = safetensors.load(saved["model.safetensors"])
    names = sorted(tensors)
    shards = {"model-00001-of-00002.safetensors": names[:5], "model-00002-of-00002.safetensors": names[5:]}
    index = {"weight_map": {name: file for file, part in shards.items() for name in part}}
    content = {
        file: safetensors.save({name: tensors[name] for name in part}) for file, part in shards.items()
    }
    index_file = {"model.safetensors.index.json": json.dumps(index).encode()}
    hub.add(NAME, {"config.json": saved["config.json"], **index_file, **content, "other.safetensors": b""})
    interop.from_hugging_face(NAME)
    assert not [path for _, path in hub.requests if path.endswith("other.safetensors")]


def pytorch_only(saved):
    return {"config.json": saved["config.json"], "pytorch_model.bin": b"unused"}


def test_safetensors_conversions_are_preferred_to_pytorch_files(hub, saved):
    hub.add(NAME, pytorch_only(saved))
    commit = hub.add_conversion(NAME, {"model.safetensors": saved["model.safetensors"]})
    assert local_folder(NAME).name == commit
    assert not [path for _, path in hub.requests if path.endswith(".bin")]


@pytest.mark.parametrize("settings", [{"status": "closed"}, {"parent": "c" * 40}], ids=["closed", "outdated"])
def test_unofficial_or_unrelated_conversions_are_not_used(hub, saved, settings):
    commit = hub.add(NAME, pytorch_only(saved))
    hub.add_conversion(NAME, {"model.safetensors": saved["model.safetensors"]}, **settings)
    assert local_folder(NAME).name == commit


def test_revisions_other_than_main_use_their_own_weights(hub, saved):
    commit = hub.add(NAME, pytorch_only(saved))
    hub.add_conversion(NAME, {"model.safetensors": saved["model.safetensors"]})
    assert local_folder(NAME, revision=commit).name == commit


@pytest.mark.parametrize("converted", [False, True])
def test_a_cached_model_is_used_offline(hub, saved, monkeypatch, converted):
    hub.add(NAME, pytorch_only(saved) if converted else saved)
    if converted:
        hub.add_conversion(NAME, {"model.safetensors": saved["model.safetensors"]})
    folder = local_folder(NAME)
    offline(monkeypatch)
    assert local_folder(NAME) == folder
    interop.from_hugging_face(NAME)


def test_a_cached_model_is_used_if_the_hub_is_unreachable(hub, saved, monkeypatch):
    hub.add(NAME, saved)
    folder = local_folder(NAME)
    use_hub_at(monkeypatch, "http://127.0.0.1:9")  # an address without a server
    assert local_folder(NAME) == folder


def test_a_cached_model_is_used_where_the_hub_fails(hub, saved):
    hub.add(NAME, saved)
    folder = local_folder(NAME)
    hub.status = 500
    assert local_folder(NAME) == folder


def test_a_model_that_is_not_cached_raises_an_error_offline(hub, saved, monkeypatch):
    hub.add(NAME, saved)
    offline(monkeypatch)
    with pytest.raises(
        FileNotFoundError,
        match=r"`source` must be a folder, or a model in the cache .*Received: 'someone/small",
    ):
        local_folder(NAME)


def test_an_interrupted_download_is_retried(hub, saved):
    hub.add(NAME, saved)
    hub.broken.add("model.safetensors")
    interop.from_hugging_face(NAME)
    assert sum(method == "GET" and "/cdn/" in path for method, path in hub.requests) == 2


def test_a_corrupt_download_raises_an_error_and_is_not_kept(hub, saved):
    hub.add(NAME, saved)
    hub.damaged.add("model.safetensors")
    with pytest.raises(ValueError, match=r"`model.safetensors` of someone/small-gpt must have the sha256"):
        local_folder(NAME)
    hub.damaged.clear()
    interop.from_hugging_face(NAME)


INVALID = {
    "unknown": (
        {},
        {},
        FileNotFoundError,
        r"`source` must be a folder, or a model of .* that `token` may read",
    ),
    "private": (
        {"token": "secret"},
        {},
        FileNotFoundError,
        r"that `token` may read. Received: .* with no token",
    ),
    "gated": (
        {"token": "secret", "is_gated": True},
        {},
        PermissionError,
        r"`token` must be of a user who has accepted the conditions of someone/small-gpt",
    ),
    "wrong token": (
        {"token": "secret"},
        {"token": "hf_other"},
        PermissionError,
        "has not answered for someone/small",
    ),
}


@pytest.mark.parametrize("case", INVALID)
def test_a_model_without_access_raises_an_error(hub, saved, case):
    settings, options, error, message = INVALID[case]
    if case != "unknown":
        hub.add(NAME, saved, **settings)
    with pytest.raises(error, match=message):
        local_folder(NAME, **options)


def test_a_private_model_is_read_with_its_token(hub, saved):
    hub.add(NAME, saved, token="hf_secret")
    interop.from_hugging_face(NAME, token="hf_secret")


def test_a_full_disk_raises_an_error(hub, saved, monkeypatch):
    hub.add(NAME, saved)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", full)
    with pytest.raises(
        OSError, match=r"the download of someone/small-gpt has failed: .*No space left on device"
    ):
        local_folder(NAME)


def test_a_model_without_config_raises_an_error(hub):
    hub.add(NAME, {"README.md": b""})
    with pytest.raises(
        FileNotFoundError, match=r"with config.json. Received: 'someone/small-gpt', which has README.md"
    ):
        local_folder(NAME)


def test_an_index_that_names_a_file_outside_the_folder_raises_an_error(hub, saved):
    index = json.dumps({"weight_map": {"wte.weight": "../../secret.safetensors"}}).encode()
    hub.add(NAME, {"config.json": saved["config.json"], "model.safetensors.index.json": index})
    with pytest.raises(
        ValueError, match=r"must name files in its folder. Received: '../../secret.safetensors'"
    ):
        local_folder(NAME)
