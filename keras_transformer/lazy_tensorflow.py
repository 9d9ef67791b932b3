"""TensorFlow, imported when it is first used: for texts in its graph, files of images, and exports."""

import functools
import importlib.util
from typing import TYPE_CHECKING, Any


@functools.cache
def is_installed() -> bool:
    """Return whether TensorFlow Text is installed, which requires TensorFlow: texts are tokenized in its graph."""
    return importlib.util.find_spec("tensorflow_text") is not None


TENSORFLOW = (
    "TensorFlow and TensorFlow Text, the extra [tensorflow]: pip install tensorflow 'tensorflow-text!=2.21.0'"
)
"""The command that installs TensorFlow, for error messages. Importing TensorFlow Text 2.21.0 fails."""


def require(name: str) -> None:
    """Raise an ImportError for a function or subpackage if TensorFlow Text is not installed."""
    if not is_installed():
        raise ImportError(f"`{name}` requires {TENSORFLOW}")


class _TensorFlow:
    """The module, imported when one of its attributes is first used."""

    def __getattr__(self, name: str) -> Any:
        try:
            import tensorflow
        except ModuleNotFoundError as error:
            raise ImportError(
                "`preprocess`, `postprocess`, `signatures`, `onnx_graphs` and `example_inputs` of pipelines, and files "
                f"of images, require {TENSORFLOW}"
            ) from error
        value = getattr(tensorflow, name)
        setattr(self, name, value)  # found without this method from now on
        return value


if TYPE_CHECKING:
    import tensorflow as tf
else:
    tf = _TensorFlow()
