"""Modified exports: `verify` and `load` reject each change and name the file."""

import json
import os
import shutil

import numpy as np
import onnx
import pytest

import keras_transformer_serving as serving
from keras_transformer_serving import bundle, external_data, files, manifest

KEY, OTHER_KEY = b"key", b"another key"


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def add(name):
    def attack(folder):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"added")

    return attack


def edit(change, key=None):
    """Edit the manifest's files with `change`; update its digest, and its signature if there is a key."""

    def attack(folder):
        entries = files.read_json(folder / "manifest.json")["files"]
        change(folder, entries)
        files.write_json(folder / "manifest.json", manifest.sealed({}, entries, key))

    return attack


def replace(name, content):
    """Replace a file and its entry in the manifest."""

    def change(folder, entries):
        new = content(folder) if callable(content) else content
        (folder / name).write_bytes(new)
        entries[name] = manifest.entry(new)

    return edit(change)


def without(part, remove=False):
    def change(folder, entries):
        for name in [each for each in entries if each.startswith(part)]:
            del entries[name]
        if remove:
            shutil.rmtree(folder / part)

    return edit(change)


def listed_outside(name):
    def change(folder, entries):
        entries[name] = manifest.entry(b"outside")

    return edit(change)


def link(name):
    """Replace a file or folder by a symbolic link to a copy outside the export."""

    def attack(folder):
        outside = folder.parent / "outside"
        shutil.move(folder / name, outside)
        (folder / name).symlink_to(outside)

    return attack


def set_in_manifest(**entries):
    def attack(folder):
        path = folder / "manifest.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **entries}))

    return attack


def other_format(folder):
    content = {**files.read_json(folder / "manifest.json"), "format": 7}
    del content["digest"]
    digest = manifest.hashlib.sha256(manifest._canonical(content)).hexdigest()
    files.write_json(folder / "manifest.json", {**content, "digest": digest})


def forge_intent(folder):
    add("saved_model/it/2/saved_model.pb")(folder)
    entries = {"saved_model/it/2/saved_model.pb": manifest.entry(b"added")}
    (folder / bundle.WORK).mkdir()
    files.write_json(folder / bundle.WORK / "manifest.json", manifest.sealed({}, entries, None))


def without_report(folder):
    reports = files.read_json(folder / "parity.json")
    del reports["onnx"]
    replace("parity.json", json.dumps(reports).encode())(folder)


def other_graph(folder):
    model = onnx.load(folder / "onnx" / "model.onnx")
    model.graph.node[0].op_type = "Add"
    return model.SerializeToString()


ATTACKS = {
    "changed graph": (
        lambda folder: flip(folder / "onnx/model.onnx"),
        r"onnx/model\.onnx.* is damaged: its sha256",
    ),
    "cut graph": (
        lambda folder: os.truncate(folder / "onnx/model.onnx", 9),
        r"onnx/model\.onnx.* is damaged: .*bytes",
    ),
    "changed configuration": (
        lambda folder: flip(folder / "serving/models.config"),
        r"serving/models\.config.* is damaged: its sha256",
    ),
    "cut configuration": (
        lambda folder: os.truncate(folder / "serving/onnx/config", 1),
        r"serving/onnx/config.* is damaged: .*bytes",
    ),
    "missing configuration": (
        lambda folder: (folder / "serving/models.config").unlink(),
        r"serving/models\.config.* is missing",
    ),
    "added configuration": (add("serving/onnx/other"), r"serving/onnx/other is not listed"),
    "link to a configuration": (link("serving/onnx"), "serving/onnx is a symbolic link"),
    "removed entries": (without("serving/onnx/"), "serving/onnx/config is not listed"),
    "missing graph": (
        lambda folder: (folder / "onnx/model.onnx").unlink(),
        r"onnx/model\.onnx.* is missing",
    ),
    "changed settings": (lambda folder: flip(folder / "config.json"), r"config\.json.* is damaged"),
    "added version": (
        add("saved_model/it/2/saved_model.pb"),
        r"saved_model/it/2/saved_model\.pb is not listed in manifest\.json: remove it",
    ),
    "added empty version": (
        lambda folder: (folder / "saved_model/it/2").mkdir(),
        "saved_model/it/2 is not listed in manifest.json: remove it",
    ),
    "added external data": (add("onnx/model.onnx.data"), r"onnx/model\.onnx\.data is not listed"),
    "added hidden file": (add(".env"), r"\.env is not listed"),
    "link to a file": (
        link("onnx/model.onnx"),
        r"onnx/model\.onnx is a symbolic link: replace it with a copy",
    ),
    "link to a folder": (link("onnx"), "onnx is a symbolic link"),
    "link to a manifest": (link("manifest.json"), r"manifest\.json is a symbolic link"),
    "added link": (
        lambda folder: (folder / "saved_model/it/2").symlink_to(folder / "saved_model/it/1"),
        "saved_model/it/2 is a symbolic link",
    ),
    "edited manifest": (
        set_in_manifest(versions={}),
        r"manifest\.json` must be as it was exported: it was edited",
    ),
    "manifest without files": (set_in_manifest(files={}), r"manifest\.json` must be as .*: it was edited"),
    "manifest without digest": (
        set_in_manifest(digest=None),
        r"manifest\.json` must be as .*: it was edited",
    ),
    "another format": (other_format, r"manifest\.json` must be of format 1;.*Received: 7"),
    "removed entry": (without("onnx/model.onnx"), r"onnx/model\.onnx.* is not (listed|part)"),
    "removed report": (without_report, r"onnx/.* is of a part without a report in parity\.json"),
    "removed part": (
        without("onnx", remove=True),
        r"parity\.json has a report of onnx, which has no files|`folder` must be an export with a part that runs",
    ),
    "path outside": (listed_outside("tokenizer/../../outside"), r"must list files inside.*\.\./outside"),
    "absolute path": (listed_outside("/etc/passwd"), "must list files inside.*/etc/passwd"),
    "path with backslashes": (listed_outside("..\\outside"), "must list files inside.*outside"),
    "another graph": (replace("onnx/model.onnx", other_graph), "`forward` must have the model's logits"),
}
READERS = {"verify": serving.verify, "load": serving.load}
# `load` compares no outputs, and reads neither reports nor configurations of other servers.
UNUSED_BY_LOAD = {
    "removed report",
    "another graph",
    "changed configuration",
    "cut configuration",
    "missing configuration",
}


@pytest.fixture
def folder(small, tmp_path):
    small.write(tmp_path / "it")
    small.write(tmp_path / "it", "saved_model/it/1")
    return tmp_path / "it"


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", ATTACKS)
def test_a_modified_export_is_rejected_with_the_name_of_the_file(folder, name, reader):
    attack, message = ATTACKS[name]
    attack(folder)
    if reader == "load" and name in UNUSED_BY_LOAD:
        serving.load(folder)
        return
    with pytest.raises((FileNotFoundError, ValueError), match=message):
        READERS[reader](folder)


def test_an_unchanged_export_is_verified_and_loaded(folder):
    report = serving.verify(folder)
    assert report == {
        "onnx": {"tolerance": 1e-4, "graphs": {"forward": {"rows": 2, "largest_difference": 0.0}}}
    }
    assert serving.load(folder).run(input_ids=[[5]])["logits"] == [[5]]


def test_exports_without_graphs_are_verified(small, tmp_path):
    small.write(tmp_path / "it", "saved_model/it/1")
    assert serving.verify(tmp_path / "it") == {}


def test_a_tokenizer_outside_the_export_is_rejected(folder):
    (folder.parent / "outside.model").write_bytes(b"pieces")
    config = {**serving.Bundle(folder).config, "tokenizer_file": "../../outside.model"}
    assert serving.Bundle(folder).tokenizer_model == b"pieces"
    replace("config.json", json.dumps(config).encode())(folder)
    with pytest.raises(FileNotFoundError, match=r"outside\.model` is not part of this export"):
        serving.Bundle(folder).tokenizer_model  # noqa: B018


def test_loaded_bytes_are_the_verified_bytes(folder, monkeypatch):
    """A file that is replaced after it was hashed is not read again."""
    import onnxruntime

    read = files.pathlib.Path.read_bytes

    def exchanged(path):
        content = read(path)
        if path.name == "model.onnx":
            path.write_bytes(b"exchanged")
        return content

    given = []
    session = onnxruntime.InferenceSession

    def recorded(model, **options):
        given.append(model)
        return session(model, **options)

    original = (folder / "onnx" / "model.onnx").read_bytes()
    monkeypatch.setattr(files.pathlib.Path, "read_bytes", exchanged)
    monkeypatch.setattr(onnxruntime, "InferenceSession", recorded)
    assert serving.load(folder).run(input_ids=[[5]])["logits"] == [[5]]
    assert given == [original]


def with_external_data(model, place):
    """Return the graph with its weight in the file "weights", as an initializer or in a branch node."""
    model = onnx.ModelProto.FromString(model.SerializeToString())
    tensor = model.graph.initializer[0]
    if place != "initializer":
        del model.graph.initializer[:]
        node = onnx.helper.make_node("Constant", [], ["ten"], value=tensor)
        if place == "branch":
            branch = onnx.helper.make_graph([node], "branch", [], [])
            node = onnx.helper.make_node("If", ["input_ids"], ["ten"], then_branch=branch, else_branch=branch)
        model.graph.node.insert(0, node)
        attribute = model.graph.node[0].attribute[0]
        tensor = attribute.g.node[0].attribute[0].t if place == "branch" else attribute.t
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../weights")
    return model.SerializeToString()


@pytest.mark.parametrize("place", ["initializer", "node", "branch"])
def test_weights_in_other_files_are_rejected(small, folder, place):
    content = with_external_data(small.graph, place)
    assert [each.location for each in external_data.tensors(content)] == ["../weights"]
    assert external_data.tensors(small.graph.SerializeToString()) == []
    replace("onnx/model.onnx", content)(folder)
    (folder.parent / "weights").write_bytes(np.array([10]).tobytes())
    for reader in READERS.values():
        with pytest.raises(
            ValueError, match=r"`model\.onnx` must contain its weights.*external data in \.\./weights"
        ):
            reader(folder)


def with_weights_beside(model, **changes):
    """Return a graph that multiplies by a weight of 3 in `model.onnx_data`, and the content of that file."""
    model = onnx.ModelProto.FromString(model.SerializeToString())
    node = model.graph.node[-1]
    node.output[0] = "sums"
    model.graph.node.append(onnx.helper.make_node("Mul", ["sums", "three"], ["logits"]))
    tensor = onnx.numpy_helper.from_array(np.full([1, 1], 3, "float32"), "three")
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    entries = {"location": "model.onnx_data", "offset": 8, "length": 4, **changes}
    for key, value in entries.items():
        if value is not None:
            tensor.external_data.add(key=key, value=str(value))
    model.graph.initializer.append(tensor)
    return model.SerializeToString(), bytes(8) + np.array([3], "float32").tobytes() + bytes(4)


@pytest.fixture
def large(small, tmp_path):
    """An export whose graph has a weight in a file beside it."""

    def write(**changes):
        model, data = with_weights_beside(small.graph, **changes)
        small.write(tmp_path / "it", contents={"model.onnx": model, "model.onnx_data": data})
        return tmp_path / "it"

    return write


@pytest.mark.parametrize("length", [4, None])
def test_weights_may_be_in_the_file_beside_the_graph(large, length):
    folder = large(length=length)
    assert serving.load(folder).run(input_ids=[[5]])["logits"] == [[15]]
    (folder / "onnx" / "model.onnx_data").write_bytes(bytes(16))
    for reader in READERS.values():
        with pytest.raises(ValueError, match=r"onnx/model\.onnx_data.* is damaged"):
            reader(folder)


@pytest.mark.parametrize(
    "changes", [{"offset": 13}, {"offset": -4}, {"length": 8}, {"offset": 2**40}], ids=str
)
def test_weights_missing_from_their_file_are_rejected(large, changes):
    with pytest.raises(ValueError, match=r"`model.onnx_data` must have the weights.*Received: 16 bytes"):
        serving.load(large(**changes))


def test_weights_are_read_from_the_file_only_once(large, monkeypatch):
    """A file that is replaced after its digest was computed is not used."""
    folder = large()
    read = files.pathlib.Path.read_bytes

    def exchanged(path):
        content = read(path)
        if path.name == "model.onnx_data":
            path.write_bytes(bytes(16))
        return content

    monkeypatch.setattr(files.pathlib.Path, "read_bytes", exchanged)
    assert serving.load(folder).run(input_ids=[[5]])["logits"] == [[15]]


@pytest.mark.parametrize("content", [b"\xff", b"\x3a\xff\x01", b"\x3b", b"\x39\x00"])
def test_a_file_that_is_not_a_graph_is_rejected(content):
    with pytest.raises(ValueError, match="must be a serialised onnx.ModelProto"):
        external_data.tensors(content)


@pytest.fixture
def signed(small, tmp_path):
    for part in ("onnx", "saved_model/it/1"):
        small.write(tmp_path / "it", part, signature_key=KEY)
    return tmp_path / "it"


def test_a_signed_export_can_be_read_with_its_key_or_without_one(signed):
    for reader in READERS.values():
        reader(signed, signature_key=KEY)
        reader(signed)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("attack", "key", "message"),
    [
        (
            lambda _: None,
            OTHER_KEY,
            r"manifest\.json` must be signed with the key.*another signature",
        ),
        (edit(lambda *_: None), KEY, r"manifest\.json` must be signed, because .*without a signature"),
        (edit(lambda *_: None, OTHER_KEY), KEY, r"manifest\.json` must be signed with the key"),
        (set_in_manifest(signature=None), KEY, r"manifest\.json` must be signed, because"),
        (set_in_manifest(signature=5), KEY, r"manifest\.json` must be signed with the key"),
        (set_in_manifest(signature="ñ"), KEY, r"manifest\.json` must be signed with the key"),
        (forge_intent, KEY, r"\.keras-transformer-export/manifest\.json` must be signed, because"),
        (lambda _: None, "text", "`signature_key` must be None or bytes, at least one. Received: str"),
        (lambda _: None, b"", "`signature_key` must be None or bytes, at least one. Received: no bytes"),
    ],
    ids=["key", "unsigned", "resigned", "null", "number", "letters", "intent", "text", "empty"],
)
def test_a_signature_is_verified(signed, attack, key, message, reader):
    attack(signed)
    with pytest.raises(ValueError, match=message) as raised:
        READERS[reader](signed, signature_key=key)
    assert "key'" not in str(raised.value)


def test_a_part_is_verified_with_the_signature_of_its_export(signed, small, tmp_path):
    with pytest.raises(ValueError, match="with the key that it is signed with"):
        small.write(signed, "saved_model/it/2")
    with pytest.raises(ValueError, match="must be signed with the key"):
        small.write(signed, "saved_model/it/2", signature_key=OTHER_KEY)
    small.write(tmp_path / "unsigned")
    with pytest.raises(ValueError, match="must be signed, because"):
        small.write(tmp_path / "unsigned", "saved_model/it/2", signature_key=KEY)
    with pytest.raises(ValueError, match="`signature_key` must be None or bytes"):
        small.write(tmp_path / "new", signature_key="text")
    assert not (tmp_path / "new").exists()


def test_a_symlinked_working_folder_is_not_followed(folder, small, tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.txt").write_text("")
    (folder / bundle.WORK).symlink_to(tmp_path / "home")
    with pytest.raises(NotADirectoryError, match=r"\.keras-transformer-export` must be a folder"):
        small.write(folder, "saved_model/it/2")
    assert (tmp_path / "home" / "thesis.txt").exists()
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["thesis.txt"]


def test_an_interrupted_part_through_a_symlink_is_removed_without_following_it(folder, small, tmp_path):
    (tmp_path / "home" / "2").mkdir(parents=True)
    (tmp_path / "home" / "2" / "thesis.txt").write_text("")
    forge_intent(folder)
    shutil.rmtree(folder / "saved_model/it/2")
    (folder / "saved_model/it/2").symlink_to(tmp_path / "home" / "2")
    small.write(folder, "saved_model/it/2")
    assert (tmp_path / "home" / "2" / "thesis.txt").exists()
    assert not (folder / "saved_model/it/2").is_symlink()
    serving.verify(folder)


@pytest.mark.parametrize("name", ["serving", "saved_model/it"])
def test_an_interrupted_part_in_a_symlinked_folder_is_not_rolled_back(folder, small, tmp_path, name):
    forge_intent(folder)
    link(name)(folder)
    replaced = folder / bundle.WORK / "replaced" / "serving"
    replaced.mkdir(parents=True)
    (replaced / "models.config").write_bytes(b"forged")
    before = {path: path.read_bytes() for path in (tmp_path / "outside").rglob("*") if path.is_file()}
    with pytest.raises(ValueError, match=f"{name}` must be a folder. Remove it. Received: a symbolic link"):
        small.write(folder, "saved_model/it/3")
    assert before == {path: path.read_bytes() for path in (tmp_path / "outside").rglob("*") if path.is_file()}
