"""Keras and TensorFlow without work that they repeat, for quick tests: they behave the same."""

import functools
import inspect
import types
import typing


def create_layers_quickly(patch):
    """Create layers in half of the time.

    New attributes raise no exceptions in Keras and TensorFlow, plain values are not tracked, and signatures are read
    once. Keras stores the names of attributes that are not saved under another key than it looks up, so that it would
    create a layer for each layer that it saves or loads.
    """
    from keras.src.backend.tensorflow import trackable
    from keras.src.layers import layer
    from keras.src.ops import operation
    from keras.src.saving import saving_lib
    from tensorflow.python.trackable import autotrackable, data_structures

    missing = object()
    plain = {bool, bytes, float, int, str, types.FunctionType, type(None)}
    set_layer_attribute = layer.Layer.__setattr__

    def set_attribute(self, name, value):
        if getattr(self, name, missing) is value:
            return
        if getattr(self, "_self_setattr_tracking", True):
            for module in (trackable, data_structures):
                value = module.sticky_attribute_assignment(trackable=self, value=value, name=name)
        super(autotrackable.AutoTrackable, self).__setattr__(name, value)

    def set_attribute_of_layer(self, name, value):
        if type(value) in plain and "_tracker" in self.__dict__:
            object.__setattr__(self, name, value)
        else:
            set_layer_attribute(self, name, value)

    signatures = types.SimpleNamespace(
        Parameter=inspect.Parameter,
        signature=functools.cache(inspect.signature),
        getfullargspec=functools.cache(inspect.getfullargspec),
    )
    patch.setattr(trackable.KerasAutoTrackable, "__setattr__", set_attribute)
    patch.setattr(layer.Layer, "__setattr__", set_attribute_of_layer)
    patch.setattr(operation, "inspect", signatures)
    patch.setattr(saving_lib, "get_attr_skipset", functools.cache(saving_lib.get_attr_skipset))


def trace_quickly(patch):
    """Trace graphs with fewer operations and fewer lookups.

    Assertions have no branch, in which TensorFlow puts them to spare copies from a GPU. Only operations with resources
    are asked which of these they read. The members of protocols are found once.
    """
    from tensorflow.python.framework import auto_control_deps_utils, dtypes
    from tensorflow.python.ops import control_flow_assert
    from tensorflow.python.util import object_identity

    of_operation = auto_control_deps_utils.get_read_write_resource_inputs

    def resource_inputs(operation):
        if any(each.dtype == dtypes.resource for each in operation.inputs):
            return of_operation(operation)
        return object_identity.ObjectIdentitySet(), object_identity.ObjectIdentitySet()

    def always_asserted(_condition, _true, false, name=None):
        return types.SimpleNamespace(op=false())

    patch.setattr(control_flow_assert, "cond", types.SimpleNamespace(cond=always_asserted))
    patch.setattr(auto_control_deps_utils, "get_read_write_resource_inputs", resource_inputs)
    if hasattr(typing, "_get_protocol_attrs"):
        patch.setattr(typing, "_get_protocol_attrs", functools.cache(typing._get_protocol_attrs))
