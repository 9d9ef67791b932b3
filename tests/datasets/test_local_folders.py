"""Datasets that are read from a folder: MNIST, SST-2 and Planetoid's graphs."""

import collections
import gzip
import hashlib
import pickle

import numpy as np
import pytest

from keras_transformer.datasets import mnist, planetoid, sst2

RANDOM = np.random.default_rng(0)


def written(folder, contents, module, monkeypatch, prefix="", suffix="", pack=bytes):
    """Write files to a folder, with hashes that the module accepts as the published ones."""
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


def test_recompressed_files_give_the_same_data(digits):
    for path in digits.iterdir():
        path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes()), compresslevel=1))
    assert mnist.load_data(digits)[0][0].shape == (3, 28, 28, 1)


def test_missing_and_modified_files_are_rejected(digits, tmp_path, monkeypatch):
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
    """Pickle a matrix as SciPy's old csr_matrix was pickled."""
    sparse = pytest.importorskip("scipy.sparse").csr_matrix(matrix)
    content = pickle.dumps(sparse, protocol=3)
    return content.replace(b"cscipy.sparse._csr\n", b"cscipy.sparse.csr\n").replace(
        b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n"
    )


def plain(value):
    return pickle.dumps(value, protocol=3).replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


def written_graph(tmp_path, monkeypatch, name, features, labels, test_index, graph):
    """Write the files of a graph whose first two nodes are for training and the third for validation.

    The rows of the test split are in the order of its index.
    """
    monkeypatch.setattr(planetoid, "_NUM_VALIDATION", 1)
    others = min(test_index)
    contents = {
        "y": plain(labels[:2]),
        "tx": old_pickle(features[test_index]),
        "ty": plain(labels[test_index]),
        "allx": old_pickle(features[:others]),
        "ally": plain(labels[:others]),
        "graph": plain(collections.defaultdict(list, graph)),
        "test.index": "".join(f"{index}\n" for index in test_index).encode(),
    }
    folder = written(tmp_path / "planetoid", contents, planetoid, monkeypatch, prefix=f"ind.{name}.")
    monkeypatch.setattr(planetoid, "_SHA256", {name: planetoid._SHA256})
    return folder


@pytest.fixture
def cora(tmp_path, monkeypatch):
    labels = np.eye(3, dtype="int32")[[0, 1, 2, 0, 1, 2]]
    graph = {0: [1, 1, 0], 1: [0], 2: [], 3: [5], 4: [], 5: []}
    return written_graph(tmp_path, monkeypatch, "cora", np.eye(6, dtype="float32"), labels, [5, 4], graph)


def parts(graph):
    return {name: np.flatnonzero(getattr(graph, name)).tolist() for name in ("train", "validation", "test")}


def test_cora_orders_the_test_nodes_by_index(cora):
    graph = planetoid.load_data(cora)
    np.testing.assert_array_equal(graph.nodes, np.eye(6))
    assert graph.labels.tolist() == [0, 1, 2, 0, 1, 2]
    # Both directions of each edge, once, without self-loops.
    assert graph.edges.tolist() == [[0, 1], [1, 0], [3, 5], [5, 3]]
    assert parts(graph) == {"train": [0, 1], "validation": [2], "test": [4, 5]}


def reference_planetoid(folder, name):
    """Return features and one-hot labels as in Kipf and Welling's GCN, `gcn/utils.py`."""
    sparse = pytest.importorskip("scipy.sparse")

    def load(part):
        content = (folder / f"ind.{name}.{part}").read_bytes()
        return pickle.loads(content.replace(b"cscipy.sparse.csr\n", b"cscipy.sparse._csr\n"))

    reorder = [int(line) for line in (folder / f"ind.{name}.test.index").read_text().split()]
    ordered, full = np.sort(reorder), range(min(reorder), max(reorder) + 1)
    tx, ty = load("tx"), load("ty")
    tx_extended = sparse.lil_matrix((len(full), tx.shape[1]))
    tx_extended[ordered - min(ordered), :] = tx
    ty_extended = np.zeros((len(full), ty.shape[1]))
    ty_extended[ordered - min(ordered), :] = ty
    features = sparse.vstack((load("allx"), tx_extended)).tolil()
    features[reorder, :] = features[ordered, :]
    labels = np.vstack((load("ally"), ty_extended))
    labels[reorder, :] = labels[ordered, :]
    return features.toarray(), labels


@pytest.mark.filterwarnings("ignore:numpy.core:DeprecationWarning")
def test_gaps_in_the_test_index_equal_the_reference(tmp_path, monkeypatch):
    # Nodes 5 and 7 are not in the test index.
    random, index = np.random.default_rng(0), [6, 9, 4, 8]
    features = (random.random((10, 7)) < 0.5).astype("float32")
    labels = np.eye(3, dtype="int32")[[0, 1, 2, 0, 1, 2, 1, 0, 2, 1]]
    graph = {node: [] for node in range(10)} | {0: [4, 9], 6: [6, 0]}
    folder = written_graph(tmp_path, monkeypatch, "citeseer", features, labels, index, graph)
    found = planetoid.load_data(folder, "citeseer")
    expected_features, expected_labels = reference_planetoid(folder, "citeseer")
    np.testing.assert_array_equal(found.nodes, expected_features)
    np.testing.assert_array_equal(found.labels, expected_labels.argmax(1))
    assert not found.nodes[[5, 7]].any()
    assert found.labels[[5, 7]].tolist() == [0, 0]
    assert parts(found) == {"train": [0, 1], "validation": [2], "test": [4, 6, 8, 9]}
    assert found.edges.tolist() == [[0, 4], [0, 6], [0, 9], [4, 0], [6, 0], [9, 0]]
    assert (found.nodes.dtype, found.labels.dtype) == ("float32", "int32")


def test_pubmed_keeps_the_values_of_its_features(tmp_path, monkeypatch):
    features = np.random.default_rng(0).random((6, 4)) * (np.arange(4) != 2)
    labels = np.eye(3, dtype="float64")[[0, 1, 2, 0, 1, 2]]
    folder = written_graph(tmp_path, monkeypatch, "pubmed", features, labels, [4, 5], {0: [5]})
    found = planetoid.load_data(folder, "pubmed")
    np.testing.assert_array_equal(found.nodes, features.astype("float32"))
    assert found.nodes.dtype == "float32"
    assert found.labels.tolist() == [0, 1, 2, 0, 1, 2]


def test_every_graph_has_the_hashes_of_its_files():
    assert list(planetoid._SHA256) == ["cora", "citeseer", "pubmed"]
    for hashes in planetoid._SHA256.values():
        assert set(hashes) == {"y", "tx", "ty", "allx", "ally", "graph", "test.index"}
        assert all(len(bytes.fromhex(each)) == 32 for each in hashes.values())


def test_an_unknown_graph_is_rejected(tmp_path):
    with pytest.raises(ValueError, match=r"`name` must be one of \('cora', .*Received: name='nell'"):
        planetoid.load_data(tmp_path, "nell")


class Evil:
    def __reduce__(self):
        return (print, ("this must not run",))


def test_pickles_of_other_classes_are_rejected(cora, monkeypatch, capsys):
    content = pickle.dumps(Evil(), protocol=3)
    (cora / "ind.cora.graph").write_bytes(content)
    with pytest.raises(ValueError, match="must have the sha256"):
        planetoid.load_data(cora)
    monkeypatch.setitem(planetoid._SHA256["cora"], "graph", hashlib.sha256(content).hexdigest())
    with pytest.raises(
        pickle.UnpicklingError, match=r"arrays, sparse matrices.*Received: (__builtin__|builtins).print"
    ):
        planetoid.load_data(cora)
    assert "this must not run" not in capsys.readouterr().out


class TestRealFiles:
    @pytest.fixture(autouse=True)
    def folder(self, real_data, monkeypatch):
        monkeypatch.setenv("KERAS_TRANSFORMER_DATA", str(real_data))

    def test_mnist_has_the_published_sizes(self):
        (images, labels), (test_images, test_labels) = mnist.load_data()
        assert (images.shape, test_images.shape) == ((60_000, 28, 28, 1), (10_000, 28, 28, 1))
        assert (labels[:5].tolist(), test_labels[:5].tolist()) == ([5, 0, 4, 1, 9], [7, 2, 1, 0, 4])

    def test_sst2_has_the_published_sizes(self):
        train, validation, test = sst2.load_data()
        assert (len(train), len(validation), len(test)) == (6_920, 872, 1_821)
        assert train[1] == (
            "apparently reassembled from the cutting-room floor of any given daytime soap .",
            0,
        )
        assert {label for part in (train, validation, test) for _, label in part} == {0, 1}

    @pytest.mark.parametrize(
        ("name", "nodes", "features", "classes", "citations"),
        [
            ("cora", 2_708, 1_433, 7, 5_278),
            ("citeseer", 3_327, 3_703, 6, 4_552),
            ("pubmed", 19_717, 500, 3, 44_324),
        ],
    )
    def test_citation_graphs_have_the_published_sizes(
        self, real_data, name, nodes, features, classes, citations
    ):
        if not (real_data / "planetoid" / f"ind.{name}.graph").is_file():
            pytest.skip(f"{real_data} has no ind.{name}.*")
        graph = planetoid.load_data(name=name)
        assert graph.nodes.shape == (nodes, features)
        assert (set(np.unique(graph.nodes)) == {0, 1}) == (name != "pubmed")
        assert graph.edges.shape == (2 * citations, 2)
        counts = [int(part.sum()) for part in (graph.train, graph.validation, graph.test)]
        assert counts == [20 * classes, 500, 1_000]
        assert np.bincount(graph.labels[graph.train]).tolist() == [20] * classes
        assert not (graph.train & graph.test).any()
