"""Planetoid's citation graphs: Cora, Citeseer and PubMed."""

import collections
import io
import os
import pickle
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.datasets import files
from keras_transformer_options.arguments import check_one_of

_COMMIT = "af6abf468a772cc055bec88c52e4d6f51b7c37e3"
ADDRESS = f"https://raw.githubusercontent.com/kimiyoung/planetoid/{_COMMIT}/data"
_SHA256 = {
    "cora": {
        "y": "94465c14eb53e04ca262198dcbb2521ee8af60fb3f3d546cd6ca24a511b0e7d1",
        "tx": "b9afbaa4a400df991f6f02ef677e1e44da55ffc04801fd02f9e673987829226a",
        "ty": "41f5ac76596a1699cc33f53084a2419e92961c42bb75f36fc38e616d348532ad",
        "allx": "9419ba2f26f5c35243db64aba110e0f35a04851609e0dc5433450676ca6b8543",
        "ally": "2b998f5cc7fedc86e7f97ca2498f47a1ffc1462c29e2d578b23bf3f62b6e7d71",
        "graph": "58f13302f39dde8852dad6fe6d15b89b077b6d7f837626bce671ef80344b383d",
        "test.index": "297ce89af2b51a6a194181c7dbe1796c6a1cf9cd9349a88383b1b1e227867875",
    },
    "citeseer": {
        "y": "8ba87e515d8e3ee3cf52f6d2c5b86aa73f11ecad825a808455209ec26cd54924",
        "tx": "539a8906a2da97628d212f2fdd668c109a8b3f0d36574b59e5d3fd5b5303da21",
        "ty": "55e5bd1ba1e733a04598753ad1a8d57957f4b8f89e74519f41f4f4938767e4ce",
        "allx": "2ac30345d95c9ec933a817ee0bdd6a5f077f8c184a20e696910192d534414668",
        "ally": "f704b2d986dde6c2669934de1f3ae5696a6cf9455c0f6b2646a2d135ea0a1c95",
        "graph": "d79a4ef9d3e7169aee8946145f6b7306e35bc79bffad26346cfb94e10e9912a7",
        "test.index": "2af990671580b6b2df5d158d1038f8292e30c9cd821b5453f399659b25b723d4",
    },
    "pubmed": {
        "y": "e6c807633307a07ed659249006536a147c7999c797f11a2560752990181b41b3",
        "tx": "4eb5f5d0f30f26497eb0ac6ac9719d09c67e284f1ed0385c93f3ef27a671da3d",
        "ty": "ee2e0d4819d9fbcc403689c3bf2e49face401b605932f093bc58ab6461130fdd",
        "allx": "508e538e2abdccdd54c4d3e9f49d638b4af7107d85845f66ddea5a5152658b7e",
        "ally": "0c37bbe3b5014ec365e9d393cf4791925e5ed94fb194305d74f064a8d7b50f0e",
        "graph": "5b89f0036ca22909471f1e6558eb42fa06e0c730a577bde5b058b40638f81dc9",
        "test.index": "b101d421688bbaecbd82e8a18f1e282378d6830f3a37666f28ebc47f844341b5",
    },
}
_NUM_VALIDATION = 500


class Graph(NamedTuple):
    """A graph whose nodes have features and labels.

    Attributes:
        nodes: features, float32 (T, D).
        edges: pairs [source, target], int32 (E, 2), with both directions of each citation.
        labels: the class of each node, int32 (T,).
        train: the mask of training nodes, bool (T,).
        validation: the mask of validation nodes, bool (T,).
        test: the mask of test nodes, bool (T,).
    """

    nodes: np.ndarray
    edges: np.ndarray
    labels: np.ndarray
    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray


def load_data(folder: str | os.PathLike[str] | None = None, name: str = "cora") -> Graph:
    """Load a citation graph with the public split: 20 nodes of each class for training, 500 for validation.

    | name | nodes | features | classes | citations | train, validation, test |
    |---|---:|---:|---:|---:|---|
    | "cora" | 2,708 | 1,433, binary | 7 | 5,278 | 140, 500, 1,000 |
    | "citeseer" | 3,327 | 3,703, binary | 6 | 4,552 | 120, 500, 1,000 |
    | "pubmed" | 19,717 | 500, TF-IDF | 3 | 44,324 | 60, 500, 1,000 |

    The features are as published, not normalised. Citeseer's test index spans 1,015 nodes but lists only 1,000 of them:
    as in the loaders of GCN and PyTorch Geometric, the other 15, which are isolated, have zero features, label 0 and
    no place in the split.

    The files are pickles. They are read only after verifying their SHA-256, by an unpickler restricted to arrays,
    sparse matrices and dictionaries.

    Args:
        folder: the folder with `ind.cora.y` and so on. By default `planetoid` in the folder that the environment
            variable `KERAS_TRANSFORMER_DATA` names; if it is not set, the files are downloaded with
            `keras.utils.get_file`.
        name: "cora", "citeseer" or "pubmed".

    Returns:
        The graph, with each citation in both directions, without duplicates and self-loops.

    Raises:
        FileNotFoundError: if a file is not in the folder.
        ValueError: if `name` is unknown, or the SHA-256 of a file does not match.

    Example:
        >>> graph = load_data(name="citeseer")  # doctest: +SKIP

    References:
        Yang et al., "Revisiting Semi-Supervised Learning with Graph Embeddings" (2016).
    """
    check_one_of(tuple(_SHA256), name=name)
    contents = {
        key: files.content("planetoid", f"ind.{name}.{key}", ADDRESS, sha256, folder)
        for key, sha256 in _SHA256[name].items()
    }
    index = np.array(contents["test.index"].split(), int)
    nodes = _with_test_rows(_read(contents["allx"]).dense(), _read(contents["tx"]).dense(), index)
    labels = _with_test_rows(_read(contents["ally"]), _read(contents["ty"]), index).argmax(1)
    neighbours = _read(contents["graph"])
    pairs = {
        pair
        for node, others in neighbours.items()
        for other in others
        for pair in ((node, other), (other, node))
    }
    edges = np.array(sorted(pair for pair in pairs if pair[0] != pair[1]), "int32")
    number, num_train = np.arange(len(nodes)), len(_read(contents["y"]))
    return Graph(
        nodes=nodes,
        edges=edges,
        labels=labels.astype("int32"),
        train=number < num_train,
        validation=(number >= num_train) & (number < num_train + _NUM_VALIDATION),
        test=np.isin(number, index),
    )


def _with_test_rows(rows: np.ndarray, test_rows: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Insert the test rows at their indices; gaps in the indices become rows of zeros."""
    result = np.zeros((index.max() + 1, rows.shape[1]), rows.dtype)
    result[: len(rows)] = rows
    result[index] = test_rows
    return result


class _SparseMatrix:
    """The pickled state of a `scipy.sparse.csr_matrix`."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.shape = state["_shape"]
        self.data, self.columns, self.row_ends = state["data"], state["indices"], state["indptr"]

    def dense(self) -> np.ndarray:
        """Return the dense matrix, float32."""
        matrix = np.zeros(self.shape, "float32")
        rows = np.repeat(np.arange(self.shape[0]), np.diff(self.row_ends))
        matrix[rows, self.columns] = self.data
        return matrix


_reconstruct = np.zeros(0).__reduce__()[0]
_ALLOWED = {
    ("scipy.sparse.csr", "csr_matrix"): _SparseMatrix,
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("collections", "defaultdict"): collections.defaultdict,
    ("builtins", "list"): list,
    ("__builtin__", "list"): list,
}


class _Unpickler(pickle.Unpickler):
    """An unpickler restricted to the classes in Planetoid's files."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(
                f"The file must contain only arrays, sparse matrices and dictionaries. Received: {module}.{name}"
            ) from None


def _read(content: bytes) -> Any:
    return _Unpickler(io.BytesIO(content), encoding="latin1").load()
