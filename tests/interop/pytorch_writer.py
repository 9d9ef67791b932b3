"""Files in PyTorch's two formats, written without PyTorch."""

import collections
import contextlib
import io
import pickle
import sys
import types
import zipfile

import numpy as np

STORAGES = {
    "float32": "FloatStorage",
    "float16": "HalfStorage",
    "bfloat16": "BFloat16Storage",
    "int64": "LongStorage",
}


class Tensor:
    """A tensor that is pickled like a tensor of PyTorch.

    Args:
        values: the values of its storage.
        offset: the index of the first value.
        shape: the shape, by default the shape of the values.
        strides: the strides, in values.
    """

    def __init__(self, values, offset=0, shape=None, strides=None):
        self.values = values
        self.shape = values.shape if shape is None else shape
        default = tuple(stride // values.itemsize for stride in values.strides)
        self.arguments = (offset, tuple(self.shape), default if strides is None else strides, False)

    def __reduce__(self):
        rebuild = sys.modules["torch._utils"]._rebuild_tensor_v2
        return rebuild, (Storage(self.values), *self.arguments, collections.OrderedDict())


class Storage:
    def __init__(self, values):
        self.values = values


@contextlib.contextmanager
def torch_names():
    """Define the globals that a pickle of PyTorch names."""
    torch, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")

    def _rebuild_tensor_v2():
        """Stand-in for the function of PyTorch."""

    _rebuild_tensor_v2.__module__, _rebuild_tensor_v2.__qualname__ = "torch._utils", "_rebuild_tensor_v2"
    utils._rebuild_tensor_v2 = _rebuild_tensor_v2
    torch._utils = utils
    for name in STORAGES.values():
        setattr(torch, name, type(name, (), {"__module__": "torch"}))
    kept = {name: sys.modules.get(name) for name in ("torch", "torch._utils")}
    sys.modules.update({"torch": torch, "torch._utils": utils})
    try:
        yield
    finally:
        for name, module in kept.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


def dump(tensors, is_legacy=False):
    """Return the content of a file with a dictionary of tensors."""
    storages = {}

    class Pickler(pickle.Pickler):
        def persistent_id(self, obj):
            if not isinstance(obj, Storage):
                return None
            key = str(len(storages))
            for known, values in storages.items():
                if values is obj.values:
                    key = known
            storages[key] = obj.values
            name = STORAGES[obj.values.dtype.name]
            return (
                "storage",
                getattr(sys.modules["torch"], name),
                key,
                "cpu",
                obj.values.size,
                *([None] * is_legacy),
            )

    with torch_names():
        pickled = io.BytesIO()
        Pickler(pickled, protocol=2).dump(tensors)
    if is_legacy:
        parts = [
            pickle.dumps(value, protocol=2)
            for value in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True})
        ]
        parts += [pickled.getvalue(), pickle.dumps(list(storages), protocol=2)]
        parts += [values.size.to_bytes(8, "little") + values.tobytes() for values in storages.values()]
        return b"".join(parts)
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("model/data.pkl", pickled.getvalue())
        archive.writestr("model/byteorder", "little")
        for key, values in storages.items():
            archive.writestr(f"model/data/{key}", values.tobytes())
    return content.getvalue()


def as_tensors(arrays):
    """Return arrays as tensors."""
    return collections.OrderedDict(
        (name, Tensor(np.ascontiguousarray(each))) for name, each in arrays.items()
    )
