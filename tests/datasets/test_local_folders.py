"""Data sets that are read from a folder: MNIST, SST-2 and Cora."""

import collections
import gzip
import hashlib
import pickle

import numpy as np
import pytest

from keras_transformer.datasets import mnist, planetoid, sst2

RANDOM = np.random.default_rng(0)


def written(folder, contents, module, monkeypatch, prefix="", suffix="", pack=bytes):
    """The contents as files of a folder, which the module takes for the published ones."""
    folder.mkdir(exist_ok=True)
    for name, content in contents.items():
        (folder / f"{prefix}{name}{suffix}").write_bytes(pack(content))
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    monkeypatch.setattr(module, "_SHA256", hashes)
    return folder


@pytest.fixture
def digits(tmp_path, monkeypatch):
    contents = {}
    for part, count in (("train", 3), ("t10k", 2)):
        for kind, shape in (("images-idx3", (count, 28, 28)), ("labels-idx1", (count,))):
            header = bytes([0, 0, 8, len(shape)]) + np.array(shape, ">i4").tobytes()
            contents[f"{part}-{kind}-ubyte"] = (
                header + (np.arange(np.prod(shape)) % 250).astype("uint8").tobytes()
            )
    return written(tmp_path / "mnist", contents, mnist, monkeypatch, suffix=".gz", pack=gzip.compress)


def test_mnist_reads_images_and_digits(digits):
    (images, labels), (test_images, test_labels) = mnist.load_data(digits)
    assert (images.shape, images.dtype, test_images.shape) == ((3, 28, 28, 1), "uint8", (2, 28, 28, 1))
    np.testing.assert_array_equal(images.ravel(), np.arange(3 * 28 * 28) % 250)
    assert (labels.tolist(), labels.dtype, test_labels.tolist()) == ([0, 1, 2], "int32", [0, 1])


def test_another_packing_of_the_same_content_is_the_same(digits):
    for path in digits.iterdir():
        path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()), compresslevel=1))
    assert mnist.load_data(digits)[0][0].shape == (3, 28, 28, 1)


def test_files_that_are_missing_or_others_are_refused(digits, tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"`folder` must hold train-images-idx3-ubyte.gz"):
        mnist.load_data(tmp_path)
    monkeypatch.setenv("KERAS_TRANSFORMER_DATA", str(tmp_path))
    assert len(mnist.load_data()[0][0]) == 3
    (digits / "t10k-labels-idx1-ubyte.gz").write_bytes(gzip.compress(b"other"))
    with pytest.raises(ValueError, match=r"t10k-labels-idx1-ubyte.gz must have the sha256"):
        mnist.load_data(digits)


def test_sst2_splits_label_and_sentence(tmp_path, monkeypatch):
    lines = b"1 a fine film\n0 1 star at most \xc2\x85 no more\n"
    contents = {f"stsa.binary.{part}": lines for part in ("train", "dev", "test")}
    folder = written(tmp_path / "sst2", contents, sst2, monkeypatch)
    train, validation, test = sst2.load_data(folder)
    assert train == validation == test == [("a fine film", 1), ("1 star at most \x85 no more", 0)]


def old_pickle(matrix):
    """A matrix as SciPy's old csr_matrix was pickled."""
    sparse = pytest.importorskip("scipy.sparse").csr_matrix(matrix)
    content = pickle.dumps(sparse, protocol=3)
    return content.replace(b"cscipy.sparse._csr\n", b"cscipy.sparse.csr\n").replace(
        b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n"
    )


@pytest.fixture
def cora(tmp_path, monkeypatch):
    """Six nodes: two to learn from, two others, and the test set 5, 4, whose rows stand in that order."""
    monkeypatch.setattr(planetoid, "_NUM_VALIDATION", 1)
    features = np.eye(6, dtype="float32")
    labels = np.eye(3, dtype="int32")[[0, 1, 2, 0, 1, 2]]
    graph = collections.defaultdict(list, {0: [1, 1, 0], 1: [0], 2: [], 3: [5], 4: [], 5: []})

    def plain(value):
        return pickle.dumps(value, protocol=3).replace(b"numpy._core.multiarray", b"numpy.core.multiarray")

    contents = {
        "y": plain(labels[:2]),
        "tx": old_pickle(features[[5, 4]]),
        "ty": plain(labels[[5, 4]]),
        "allx": old_pickle(features[:4]),
        "ally": plain(labels[:4]),
        "graph": plain(graph),
        "test.index": b"5\n4\n",
    }
    return written(tmp_path / "planetoid", contents, planetoid, monkeypatch, prefix="ind.cora.")


def test_cora_puts_the_test_set_in_its_places(cora):
    graph = planetoid.load_data(cora)
    np.testing.assert_array_equal(graph.nodes, np.eye(6))
    assert graph.labels.tolist() == [0, 1, 2, 0, 1, 2]
    # Both directions of each, once, without loops.
    assert graph.edges.tolist() == [[0, 1], [1, 0], [3, 5], [5, 3]]
    parts = {name: np.flatnonzero(getattr(graph, name)).tolist() for name in ("train", "validation", "test")}
    assert parts == {"train": [0, 1], "validation": [2], "test": [4, 5]}


class Evil:
    def __reduce__(self):
        return (print, ("this must not run",))


def test_a_pickle_of_anything_else_is_not_opened(cora, monkeypatch, capsys):
    content = pickle.dumps(Evil(), protocol=3)
    (cora / "ind.cora.graph").write_bytes(content)
    with pytest.raises(ValueError, match="must have the sha256"):
        planetoid.load_data(cora)
    hashes = planetoid._SHA256 | {"graph": hashlib.sha256(content).hexdigest()}
    monkeypatch.setattr(planetoid, "_SHA256", hashes)
    with pytest.raises(
        pickle.UnpicklingError, match=r"arrays, sparse matrices.*Found: (__builtin__|builtins).print"
    ):
        planetoid.load_data(cora)
    assert "this must not run" not in capsys.readouterr().out


class TestRealFiles:
    @pytest.fixture(autouse=True)
    def folder(self, real_data, monkeypatch):
        monkeypatch.setenv("KERAS_TRANSFORMER_DATA", str(real_data))

    def test_mnist(self):
        (images, labels), (test_images, test_labels) = mnist.load_data()
        assert (images.shape, test_images.shape) == ((60_000, 28, 28, 1), (10_000, 28, 28, 1))
        assert (labels[:5].tolist(), test_labels[:5].tolist()) == ([5, 0, 4, 1, 9], [7, 2, 1, 0, 4])

    def test_sst2(self):
        train, validation, test = sst2.load_data()
        assert (len(train), len(validation), len(test)) == (6_920, 872, 1_821)
        assert train[1] == (
            "apparently reassembled from the cutting-room floor of any given daytime soap .",
            0,
        )
        assert {label for part in (train, validation, test) for _, label in part} == {0, 1}

    def test_cora(self):
        graph = planetoid.load_data()
        assert graph.nodes.shape == (2_708, 1_433)
        assert set(np.unique(graph.nodes)) == {0, 1}
        assert graph.edges.shape == (2 * 5_278, 2)
        counts = [int(part.sum()) for part in (graph.train, graph.validation, graph.test)]
        assert counts == [140, 500, 1_000]
        assert np.bincount(graph.labels[graph.train]).tolist() == [20] * 7
        assert not (graph.train & graph.test).any()
