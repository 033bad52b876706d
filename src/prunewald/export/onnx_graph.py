"""What is changed in a graph of ONNX after torch has written it."""

from collections.abc import Iterator
from typing import Any

import numpy as np


def graphs(graph: Any) -> Iterator[Any]:
    """A graph, and those inside its nodes."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from graphs(attribute.g)
            for inside in attribute.graphs:
                yield from graphs(inside)


def clean_(proto: Any) -> None:
    """Drop what is wrong elsewhere, or nobody's business.

    The shapes of weights stand in a list of their own too, and onnxruntime's quantize_dynamic turns weights and not
    that, so that it then finds the two at odds. Stack traces have the paths of this machine.
    """
    for graph in graphs(proto.graph):
        weights = {one.name for one in graph.initializer}
        kept = [info for info in graph.value_info if info.name not in weights]
        del graph.value_info[:]
        graph.value_info.extend(kept)
        for node in graph.node:
            told = [entry for entry in node.metadata_props if entry.key != "pkg.torch.onnx.stack_trace"]
            del node.metadata_props[:]
            node.metadata_props.extend(told)


def fixed_first(proto: Any) -> dict[str, int]:
    """The inputs whose first dimension is a number, and which."""
    shapes = {one.name: one.type.tensor_type.shape.dim for one in proto.graph.input}
    return {name: dims[0].dim_value for name, dims in shapes.items() if dims and dims[0].HasField("dim_value")}


def sparse_(proto: Any) -> None:
    """Store every weight as values and positions that is smaller so: 8 bytes a position, as ONNX wants them."""
    from onnx import SparseTensorProto, numpy_helper

    dense = []
    for one in proto.graph.initializer:
        array = numpy_helper.to_array(one)
        places = np.flatnonzero(array)
        if places.size * (array.itemsize + 8) + 64 >= array.nbytes:
            dense.append(one)
            continue
        # A constant that is all zero keeps one of them: no reader has to know of an empty list.
        places = places if places.size else np.zeros(1, np.int64)
        values = numpy_helper.from_array(array.reshape(-1)[places], one.name)
        stored = SparseTensorProto(values=values, indices=numpy_helper.from_array(places.astype(np.int64)))
        stored.dims.extend(array.shape)
        proto.graph.sparse_initializer.append(stored)
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(dense)
