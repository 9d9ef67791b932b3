"""Cora: scientific papers that cite each other, one of the graphs of Planetoid."""

import collections
import io
import os
import pickle
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.datasets import files

_COMMIT = "af6abf468a772cc055bec88c52e4d6f51b7c37e3"
ADDRESS = f"https://raw.githubusercontent.com/kimiyoung/planetoid/{_COMMIT}/data"
_SHA256 = {
    "y": "94465c14eb53e04ca262198dcbb2521ee8af60fb3f3d546cd6ca24a511b0e7d1",
    "tx": "b9afbaa4a400df991f6f02ef677e1e44da55ffc04801fd02f9e673987829226a",
    "ty": "41f5ac76596a1699cc33f53084a2419e92961c42bb75f36fc38e616d348532ad",
    "allx": "9419ba2f26f5c35243db64aba110e0f35a04851609e0dc5433450676ca6b8543",
    "ally": "2b998f5cc7fedc86e7f97ca2498f47a1ffc1462c29e2d578b23bf3f62b6e7d71",
    "graph": "58f13302f39dde8852dad6fe6d15b89b077b6d7f837626bce671ef80344b383d",
    "test.index": "297ce89af2b51a6a194181c7dbe1796c6a1cf9cd9349a88383b1b1e227867875",
}
_NUM_VALIDATION = 500


class Graph(NamedTuple):
    """A graph whose nodes have features and labels.

    Attributes:
        nodes: Features, float32 (T, D).
        edges: [source, target], int32 (E, 2), both directions of each.
        labels: The class of each node, int32 (T,).
        train: Which nodes are to be learnt from, bool (T,).
        validation: Which nodes choose among models, bool (T,).
        test: Which nodes are to be predicted, bool (T,).
    """

    nodes: np.ndarray
    edges: np.ndarray
    labels: np.ndarray
    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray


def load_data(folder: str | os.PathLike[str] | None = None) -> Graph:
    """Loads Cora with the public split: 20 nodes of each class to learn from, 500 to validate, 1,000 to test.

    The files are pickles. They are opened only once their sha256 is the published one, by an unpickler that knows
    arrays, sparse matrices and dictionaries, and nothing else.

    Args:
        folder: Holds `ind.cora.x` and so on; by default `planetoid` in the folder that the environment variable
            `KERAS_TRANSFORMER_DATA` names or, where it is not set, the cache of `keras.utils.get_file`, filled
            from their public address.

    Returns:
        The graph: 2,708 nodes, 1,433 binary features (which words a paper has), 5,278 citations in both
        directions, 7 classes. The features are as published, not normalised.

    Raises:
        FileNotFoundError: If a file is not in the folder.
        ValueError: If a file has another sha256.

    Example:
        >>> graph = load_data()  # doctest: +SKIP

    References:
        Yang et al., "Revisiting Semi-Supervised Learning with Graph Embeddings" (2016).
    """
    part = {
        name: files.content("planetoid", f"ind.cora.{name}", ADDRESS, _SHA256[name], folder)
        for name in _SHA256
    }
    # The test set's rows stand in the order of its index, behind all others.
    index = np.array(part["test.index"].split(), int)
    order = np.argsort(index)
    nodes = np.concatenate([_read(part["allx"]).dense(), _read(part["tx"]).dense()[order]])
    labels = np.concatenate([_read(part["ally"]), _read(part["ty"])[order]]).argmax(1)
    neighbours = _read(part["graph"])
    pairs = {
        pair
        for node, others in neighbours.items()
        for other in others
        for pair in ((node, other), (other, node))
    }
    edges = np.array(sorted(pair for pair in pairs if pair[0] != pair[1]), "int32")
    number, num_train = np.arange(len(nodes)), len(_read(part["y"]))
    return Graph(
        nodes=nodes,
        edges=edges,
        labels=labels.astype("int32"),
        train=number < num_train,
        validation=(number >= num_train) & (number < num_train + _NUM_VALIDATION),
        test=np.isin(number, index),
    )


class _SparseMatrix:
    """What is pickled of a scipy.sparse.csr_matrix."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.shape = state["_shape"]
        self.data, self.columns, self.row_ends = state["data"], state["indices"], state["indptr"]

    def dense(self) -> np.ndarray:
        """The whole matrix, float32."""
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
    """Knows the classes in Planetoid's files, and no others."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[module, name]
        except KeyError:
            raise pickle.UnpicklingError(
                f"the file must hold arrays, sparse matrices and dictionaries alone. Found: {module}.{name}"
            ) from None


def _read(content: bytes) -> Any:
    return _Unpickler(io.BytesIO(content), encoding="latin1").load()
