"""A model of Triton's Python backend: texts in, answers out.

Inputs and outputs are those of the signature "serving_default" of an export; the options of rows are optional inputs.
`make_repository.py --text` copies this file into the version of a model, beside the folder `export`.
"""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import triton_python_backend_utils as backend

from keras_transformer_serving.generation import GENERATE
from keras_transformer_serving.server.signatures import RequestError, Signature
from keras_transformer_serving.server.versions import Loaded, load
from keras_transformer_serving.tasks import DEFAULT, Row

_BATCH = 32


class TritonPythonModel:
    """The export of a version of a model."""

    loaded: Loaded
    signature: Signature

    def initialize(self, args: dict[str, Any]) -> None:
        """Load the export, and run it once on each length."""
        folder = pathlib.Path(args["model_repository"]) / args["model_version"] / "export"
        self.loaded = load(folder, _BATCH)
        signatures = self.loaded.signatures
        default = signatures[DEFAULT]
        self.signature = dataclasses.replace(signatures.get(GENERATE, default), outputs=default.outputs)

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer requests, whose rows are computed together; an invalid row has an error, and no effect on others."""
        responses: list[Any] = []
        rows: list[list[Row]] = []
        for request in requests:
            try:
                rows.append(self.signature.rows(self._columns(request), "{}[{}]".format))
                responses.append(None)
            except RequestError as error:
                rows.append([])
                responses.append(backend.InferenceResponse([], backend.TritonError(str(error))))
        outputs = iter(self._outputs([row for of_request in rows for row in of_request]))
        return [
            self._response([next(outputs) for _ in of_request]) if response is None else response
            for response, of_request in zip(responses, rows, strict=True)
        ]

    def _columns(self, request: Any) -> dict[str, list[Any]]:
        """Return the values of each input of a request, one for each row."""
        columns = {}
        for tensor in self.signature.inputs:
            given = backend.get_input_tensor_by_name(request, tensor.name)
            if given is not None:
                array = given.as_numpy()  # (B, 1) for a value without axes
                columns[tensor.name] = (array if tensor.shape else array.reshape(-1)).tolist()
        return columns

    def _outputs(self, rows: Sequence[Row]) -> list[Row]:
        """Return the outputs of rows, computed in batches of similar lengths."""
        return self.signature.compute(rows, self.loaded.local, self.loaded.engine, _BATCH)

    def _response(self, rows: Sequence[Row]) -> Any:
        """Return the response with the outputs of the rows of a request; those without axes are (B, 1)."""
        tensors = []
        for name, values in self.signature.stack(rows).items():
            array = values[:, None] if values.ndim == 1 else values
            if array.dtype == object:
                encoded = [str(value).encode() for value in array.ravel()]
                array = np.array(encoded, object).reshape(array.shape)
            tensors.append(backend.Tensor(name, array))
        return backend.InferenceResponse(tensors)
