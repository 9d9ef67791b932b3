"""Serve a SavedModel with the TensorFlow C++ runtime, in a process without Python TensorFlow.

    python cpp_runtime.py serve PACKAGES SAVED_MODEL   # PredictionService over gRPC; prints its port, ends with stdin
    python cpp_runtime.py operations PACKAGES          # the registered operations and their attributes, a line for each

PACKAGES is a folder of installed packages, with `tensorflow` and `tensorflow_text`, of any Python version: their shared
libraries are loaded through TensorFlow's C API (`tensorflow/c/c_api.h`), and none of their Python. As in TensorFlow
Serving, XLA is disabled, the operations of TF.Text are registered, and `Predict` takes all inputs of a signature.
"""

import concurrent.futures
import ctypes
import importlib.util
import pathlib
import sys
from ctypes import POINTER, c_char_p, c_int, c_int64, c_size_t, c_uint8, c_void_p

import numpy as np

for name in ("tensorflow", "tensorflow_text", "keras", "keras_transformer"):
    sys.modules[name] = None  # importing one is an error

ROOT = pathlib.Path(__file__).resolve().parents[2]
_spec = importlib.util.spec_from_file_location(
    "messages", ROOT / "keras_transformer" / "export" / "tensorflow_serving" / "messages.py"
)
messages = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(messages)

PROTOS = messages.message_classes(
    {
        **messages.PREDICT,
        "SavedModel": {"meta_graphs": (2, "repeated MetaGraphDef")},
        "MetaGraphDef": {"signature_def": (5, "map SignatureDef")},
        "SignatureDef": {"inputs": (1, "map TensorInfo"), "outputs": (2, "map TensorInfo")},
        "TensorInfo": {
            "name": (1, "string"),
            "dtype": (2, "int32"),
            "tensor_shape": (3, "TensorShapeProto"),
        },
        "OpList": {"op": (1, "repeated OpDef")},
        "OpDef": {"name": (1, "string"), "attr": (4, "repeated AttrDef")},
        "AttrDef": {"name": (1, "string")},
    }
)
STRING, STRING_SIZE = 7, 24  # DT_STRING, sizeof(TF_TString)
# By DataType: the NumPy type, and the field of TensorProto for its values.
NUMBERS = {
    1: ("float32", "float_val"),
    2: ("float64", "double_val"),
    3: ("int32", "int_val"),
    9: ("int64", "int64_val"),
    10: ("bool", "bool_val"),
}


class Buffer(ctypes.Structure):
    """A TF_Buffer."""

    _fields_ = (("data", c_void_p), ("length", c_size_t), ("deallocator", c_void_p))

    @property
    def content(self):
        return ctypes.string_at(self.data, self.length)


class Output(ctypes.Structure):
    """A TF_Output."""

    _fields_ = (("operation", c_void_p), ("index", c_int))


class TensorFlowError(Exception):
    """A TF_Status that is not OK."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code = code


# The result and arguments of each function; a function that may fail has a TF_Status as last argument.
FUNCTIONS = {
    "TF_NewStatus": (c_void_p,),
    "TF_GetCode": (c_int, c_void_p),
    "TF_Message": (c_char_p, c_void_p),
    "TF_DeleteStatus": (None, c_void_p),
    "TF_Version": (c_char_p,),
    "TF_GetAllOpList": (POINTER(Buffer),),
    "TF_LoadLibrary": (c_void_p, c_char_p, c_void_p),
    "TF_NewGraph": (c_void_p,),
    "TF_NewBuffer": (POINTER(Buffer),),
    "TF_NewSessionOptions": (c_void_p,),
    "TF_LoadSessionFromSavedModel": (
        c_void_p,
        *(c_void_p, c_void_p, c_char_p, POINTER(c_char_p), c_int, c_void_p, POINTER(Buffer), c_void_p),
    ),
    "TF_GraphOperationByName": (c_void_p, c_void_p, c_char_p),
    "TF_SessionRun": (
        None,
        *(c_void_p, c_void_p, POINTER(Output), POINTER(c_void_p), c_int),
        *(POINTER(Output), POINTER(c_void_p), c_int, c_void_p, c_int, c_void_p, c_void_p),
    ),
    "TF_AllocateTensor": (c_void_p, c_int, POINTER(c_int64), c_int, c_size_t),
    "TF_DeleteTensor": (None, c_void_p),
    "TF_TensorType": (c_int, c_void_p),
    "TF_NumDims": (c_int, c_void_p),
    "TF_Dim": (c_int64, c_void_p, c_int),
    "TF_TensorData": (c_void_p, c_void_p),
    "TF_TensorByteSize": (c_size_t, c_void_p),
    "TF_StringInit": (None, c_void_p),
    "TF_StringCopy": (None, c_void_p, c_char_p, c_size_t),
    "TF_StringGetDataPointer": (POINTER(c_uint8), c_void_p),
    "TF_StringGetSize": (c_size_t, c_void_p),
}


class Library:
    """The C API of an installed TensorFlow, with the operations of TF.Text, and without XLA."""

    def __init__(self, packages):
        packages = pathlib.Path(packages)
        loaded = [
            ctypes.CDLL(str(packages / "tensorflow" / name), mode=ctypes.RTLD_GLOBAL)
            for name in ("libtensorflow_framework.so.2", "libtensorflow_cc.so.2")
        ]
        for name, (result, *arguments) in FUNCTIONS.items():
            function = next(getattr(library, name) for library in loaded if hasattr(library, name))
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)
        loaded[1]._ZN10tensorflow21DisableXlaCompilationEv()
        operations = sorted((packages / "tensorflow_text" / "python" / "ops").glob("*.so"))
        if not operations:
            raise FileNotFoundError(f"no operations of TF.Text in {packages}")
        for path in operations:
            self.checked(self.TF_LoadLibrary, str(path).encode())

    def checked(self, function, *arguments):
        """Call a function whose last argument is a status."""
        status = self.TF_NewStatus()
        try:
            result = function(*arguments, status)
            if code := self.TF_GetCode(status):
                raise TensorFlowError(code, self.TF_Message(status).decode(errors="replace"))
            return result
        finally:
            self.TF_DeleteStatus(status)

    def operations(self):
        """Return the names of the attributes of each registered operation."""
        found = PROTOS["OpList"].FromString(self.TF_GetAllOpList().contents.content)
        return {op.name: sorted(each.name for each in op.attr) for op in found.op}

    def tensor(self, proto):
        """Return a new TF_Tensor of a TensorProto."""
        shape = [dim.size for dim in proto.tensor_shape.dim]
        count = int(np.prod(shape, dtype=int))
        dims = (c_int64 * len(shape))(*shape)
        if proto.dtype == STRING:
            if len(proto.string_val) != count:
                raise TensorFlowError(3, f"{len(proto.string_val)} strings of shape {shape}")
            tensor = self.TF_AllocateTensor(STRING, dims, len(shape), STRING_SIZE * count)
            for place, content in enumerate(proto.string_val):
                string = self.TF_TensorData(tensor) + STRING_SIZE * place
                self.TF_StringInit(string)
                self.TF_StringCopy(string, content, len(content))
            return tensor
        dtype, field = NUMBERS[proto.dtype]
        values = np.frombuffer(proto.tensor_content, dtype)
        if not values.size and count:  # the last value is repeated
            few = np.array(getattr(proto, field), dtype)
            values = np.concatenate([few, np.repeat(few[-1:], count - len(few))])
        if values.size != count:
            raise TensorFlowError(3, f"{values.size} values of shape {shape}")
        tensor = self.TF_AllocateTensor(proto.dtype, dims, len(shape), values.nbytes)
        ctypes.memmove(self.TF_TensorData(tensor), values.tobytes(), values.nbytes)
        return tensor

    def proto(self, tensor):
        """Return the TensorProto of a TF_Tensor."""
        proto = PROTOS["TensorProto"](dtype=self.TF_TensorType(tensor))
        for axis in range(self.TF_NumDims(tensor)):
            proto.tensor_shape.dim.add(size=self.TF_Dim(tensor, axis))
        if proto.dtype != STRING:
            content = ctypes.string_at(self.TF_TensorData(tensor), self.TF_TensorByteSize(tensor))
            proto.tensor_content = content
            return proto
        for place in range(int(np.prod([dim.size for dim in proto.tensor_shape.dim], dtype=int))):
            string = self.TF_TensorData(tensor) + STRING_SIZE * place
            size = self.TF_StringGetSize(string)
            proto.string_val.append(ctypes.string_at(self.TF_StringGetDataPointer(string), size))
        return proto


class SavedModel:
    """A SavedModel, loaded as TensorFlow Serving does."""

    def __init__(self, library, path):
        self._library = library
        self._graph, meta_graph = library.TF_NewGraph(), library.TF_NewBuffer()
        tags = (c_char_p * 1)(b"serve")
        options = library.TF_NewSessionOptions()
        arguments = options, None, str(path).encode(), tags, 1, self._graph, meta_graph
        self._session = library.checked(library.TF_LoadSessionFromSavedModel, *arguments)
        self._signatures = PROTOS["MetaGraphDef"].FromString(meta_graph.contents.content).signature_def

    def predict(self, request):
        """Return the PredictResponse to a PredictRequest."""
        name = request.model_spec.signature_name or "serving_default"
        if name not in self._signatures:
            raise TensorFlowError(9, f'Serving signature name: "{name}" not found in signature def')
        signature = self._signatures[name]
        if set(request.inputs) != set(signature.inputs):
            expected = ", ".join(sorted(signature.inputs))
            raise TensorFlowError(
                3, f"inputs must be {expected}. Received: {', '.join(sorted(request.inputs))}"
            )
        library, outputs = self._library, sorted(signature.outputs)
        given, results = [], (c_void_p * len(outputs))()
        try:
            given += [library.tensor(request.inputs[key]) for key in request.inputs]
            library.checked(
                library.TF_SessionRun,
                *(self._session, None),
                *(
                    self._places(signature.inputs, request.inputs),
                    (c_void_p * len(given))(*given),
                    len(given),
                ),
                *(self._places(signature.outputs, outputs), results, len(outputs)),
                *(None, 0, None),
            )
            response = PROTOS["PredictResponse"](model_spec=request.model_spec)
            for key, tensor in zip(outputs, results, strict=True):
                response.outputs[key].CopyFrom(library.proto(tensor))
            return response
        finally:
            for tensor in [*given, *results]:
                if tensor:
                    library.TF_DeleteTensor(tensor)

    def _places(self, infos, keys):
        """Return the TF_Outputs of tensors."""
        places = (Output * len(keys))()
        for place, key in zip(places, keys, strict=True):
            operation, _, index = infos[key].name.partition(":")
            place.operation = self._library.TF_GraphOperationByName(self._graph, operation.encode())
            place.index = int(index)
        return places


def serve(packages, path):
    """Answer `Predict` on a port of this machine until stdin ends."""
    import grpc

    library = Library(packages)
    model = SavedModel(library, path)
    codes = {code.value[0]: code for code in grpc.StatusCode}

    def predict(request, context):
        try:
            return model.predict(request)
        except TensorFlowError as error:
            return context.abort(codes[error.code], str(error))

    handler = grpc.unary_unary_rpc_method_handler(
        predict,
        request_deserializer=PROTOS["PredictRequest"].FromString,
        response_serializer=PROTOS["PredictResponse"].SerializeToString,
    )
    server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
    service = grpc.method_handlers_generic_handler(
        "tensorflow.serving.PredictionService", {"Predict": handler}
    )
    server.add_generic_rpc_handlers((service,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(library.TF_Version().decode(), port, flush=True)
    sys.stdin.read()
    server.stop(None)


def main(command, packages, *arguments):
    """Run a command."""
    if command == "serve":
        serve(packages, *arguments)
    else:
        for name, attributes in sorted(Library(packages).operations().items()):
            print(name, *attributes)


if __name__ == "__main__":
    main(*sys.argv[1:])
