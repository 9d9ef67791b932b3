"""A LitServe server with dynamic batching, for comparison in `serving.py`."""

from typing import Any

import litserve

import keras_transformer_serving

PATH = "/v1/models/model:predict"
_WAIT = 0.005  # seconds for a batch to fill


class Translation(litserve.LitAPI):
    """An API for requests with one text each, which are answered in batches.

    Attributes:
        folder: the export.
    """

    folder: str

    def setup(self, device: str) -> None:
        """Load the export in the worker's process."""
        self.pipeline = keras_transformer_serving.load(self.folder)

    def decode_request(self, request: dict[str, Any]) -> str:
        """Return the text of a request."""
        return request["instances"][0]

    def batch(self, inputs: list[str]) -> list[str]:
        """Return a batch of texts."""
        return inputs

    def predict(self, inputs: list[str]) -> list[str]:
        """Return the outputs of a batch."""
        return self.pipeline(inputs)

    def unbatch(self, output: list[str]) -> list[str]:
        """Return the output of each request."""
        return output

    def encode_response(self, output: str) -> dict[str, Any]:
        """Return the answer to a request."""
        return {"predictions": [output]}


def serve(folder: str, port: int, max_batch_size: int) -> None:
    """Serve an export with one worker."""
    api = Translation(max_batch_size=max_batch_size, batch_timeout=_WAIT, api_path=PATH)
    api.folder = folder
    server = litserve.LitServer(api, accelerator="cpu")
    server.run(port=port, generate_client_file=False, log_level="error")
