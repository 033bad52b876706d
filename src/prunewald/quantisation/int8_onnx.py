"""Trained quantisation as ONNX: int8 initializers that are the codes, in nodes that onnxruntime runs as int8."""

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from prunewald.export.comparing import compared
from prunewald.export.example_inputs import Example, Inputs
from prunewald.export.onnx_file import Written, run, session_of, written
from prunewald.export.onnx_graph import graphs
from prunewald.model.calibration import Calibration
from prunewald.quantisation.int8_codes import Coded, Codes, Source
from prunewald.quantisation.int8_nodes import Place, Range, Writer, dynamic, static
from prunewald.quantisation.int8_report import Int8Layer
from prunewald.util.arguments import real
from prunewald.util.files import FilePath, replacing
from prunewald.util.tables import html_table, text_table

_DYNAMIC = "dynamic"
_STATIC = "static"


@dataclass(frozen=True)
class Int8File:
    """What `to_onnx` wrote. Prints as a table.

    `layers` has every product by a weight: its `way` is "dynamic" (inputs are rounded as they come), "static" (in
    ranges from calibration data), or empty where it stays float. `difference` is that of outputs from the model's.
    """

    layers: tuple[Int8Layer, ...]
    difference: float
    bytes: int

    def __str__(self) -> str:
        return "\n".join([self.words(), text_table(_HEAD, [_row(one) for one in self.layers], left=_LEFT)])

    def _repr_html_(self) -> str:
        return f"<p>{self.words()}</p>" + html_table(_HEAD, [_row(one) for one in self.layers], left=_LEFT)

    def words(self) -> str:
        """What is said above the table."""
        whole = sum(bool(one.way) for one in self.layers)
        return (
            f"{whole} of {len(self.layers)} weights run as int8, {self.bytes:,} bytes; outputs differ by "
            f"{self.difference:.2g} of the largest"
        )


_HEAD = ("weight", "shape", "zeros", "codes", "lost", "inputs", "why")
_LEFT = (0, 3, 5, 6)


def _row(one: Int8Layer) -> tuple[str, ...]:
    lost = f"{one.error:.2%}" if one.codes == "rounded" else "-"
    shape = " x ".join(map(str, one.shape))
    return one.name, shape, f"{one.zeros:.1%}", one.codes or "-", lost, one.way or "float", one.reason


def to_onnx(
    source: Source,
    inputs: Inputs,
    path: FilePath,
    *,
    data: Iterable[Any] | None = None,
    percentile: float = 100.0,
    tolerance: float = 0.1,
    dynamic_shapes: Any = "batch",
    opset: int | None = None,
) -> Int8File:
    """Write an ONNX file whose weights are int8 codes, and which onnxruntime has run; returns what was done.

    `source` is a Pruner that holds `LinearValues`, or these: the file has the codes that they learned. Of any other
    Pruner or model, weights that are whole numbers of a scale are written so too, and all others are rounded, each row
    by itself. `inputs`, `dynamic_shapes` and `opset` are those of `export.to_onnx`.

    - Without `data`, linear layers round their inputs as they come, and convolutions stay float: onnxruntime is no
      faster with them in that form.
    - `data`: batches of inputs, as everywhere here; what each layer is given is then rounded in one range for all of
      them, from its smallest to its largest value there (`percentile=99.9` leaves out a tenth of a percent of them), by
      QuantizeLinear and DequantizeLinear. Convolutions run as int8 too.
    - `tolerance`: how far outputs may be from those of the model, of the largest; if one is farther it is an error, and
      nothing is written. Bools and integers are not compared: a rounded number may tip them.
    """
    real("percentile", percentile, above=50, most=100)
    real("tolerance", tolerance)
    codes = Codes(source, "quantisation.to_onnx()")
    with torch.no_grad():
        made = written(codes.model, inputs, dynamic_shapes, opset, max(tolerance, 1e-4))
        places = _places(made.proto, codes.model)
        chosen, lines = _chosen(places, codes, data is not None)
        if not chosen:
            reasons = "; ".join(sorted({f"{line.name!r}: {line.reason}" for line in lines})[:3])
            raise ValueError(
                f"no weight of the model can run as int8 ({reasons or 'it has none'}): nothing was written"
            )
        ranges = {} if data is None else _ranges(made, codes.model, chosen, data, percentile)
        _write_(made.proto, chosen, ranges)
    content = made.proto.SerializeToString()
    floats = {name: tensor for name, tensor in made.outputs.items() if tensor.is_floating_point()}
    difference = compared(run(session_of(content), made.example), floats, tolerance, "the int8 file")
    with replacing(path) as file:
        file.write(content)
    return Int8File(tuple(lines), difference, len(content))


def _places(proto: Any, model: nn.Module) -> list[Place]:
    """Where the graph multiplies by a weight of the model, under its name or, where torch turned it, by its values."""
    from onnx import numpy_helper

    constants = {one.name: one for one in proto.graph.initializer}
    params = {name: param.detach() for name, param in model.named_parameters() if param.dim() > 1}
    first = {id(model.get_parameter(name)): name for name in params}
    every = model.named_parameters(remove_duplicate=False)  # torch may call a tied weight by any of its names
    names = {name: first[id(param)] for name, param in every if id(param) in first}
    # Weights that are large, or read twice, are turned by a node.
    flips = {str(one.output[0]): str(one.input[0]) for one in proto.graph.node if one.op_type == "Transpose"}
    found = []
    for node in proto.graph.node:
        at = str(node.input[1]) if node.op_type in ("Gemm", "MatMul", "Conv") else ""
        turned = node.op_type == "MatMul" or (node.op_type == "Gemm" and not _attribute(node, "transB"))
        if at in names and at in constants:
            found.append(Place(node, names[at], turned, direct=turned))
        elif turned and (name := names.get(flips.get(at, ""), "")) and params[name].dim() == 2:
            found.append(Place(node, name, turned))
        elif turned and at in constants:
            array = torch.from_numpy(numpy_helper.to_array(constants[at]).copy())
            name = next((name for name, param in params.items() if _turned(param, array)), "")
            found += [Place(node, name, turned)] if name else []
    return found


def _turned(param: Tensor, array: Tensor) -> bool:
    return param.shape == array.shape[::-1] and param.dtype == array.dtype and torch.equal(param.t().cpu(), array)


def _chosen(places: list[Place], codes: Codes, ranged: bool) -> tuple[list[tuple[Place, Coded]], list[Int8Layer]]:
    """The places that become int8, and the lines of the report on all."""
    params = dict(codes.model.named_parameters())
    lines = {name: _line(name, param) for name, param in params.items() if param.dim() > 1}
    chosen = []
    for place in places:
        weight, line = params[place.param].detach(), lines[place.param]
        coded = _refused(place, ranged) or codes.of(place.param, weight, turned=place.direct)
        if isinstance(coded, str):
            lines[place.param] = replace(line, reason=coded)
        else:
            way = _STATIC if ranged else _DYNAMIC
            lines[place.param] = replace(line, codes=coded.origin, error=coded.error, way=way, reason="")
            chosen.append((place, coded))
    return chosen, [*lines.values()]


def _line(name: str, weight: Tensor) -> Int8Layer:
    zeros = 1 - int(torch.count_nonzero(weight)) / max(1, weight.numel())
    reason = "no linear layer or convolution of the file multiplies by it"
    return Int8Layer(name, tuple(weight.shape), zeros, reason=reason)


def _refused(place: Place, ranged: bool) -> str:
    if not place.linear:
        return "" if ranged else "a convolution needs ranges of its inputs: give data="
    numbers = {one.name: (one.f, one.i) for one in place.node.attribute}
    plain = all(numbers.get(name, (1.0, 0))[0] == 1.0 for name in ("alpha", "beta"))
    return "" if plain and not numbers.get("transA", (0.0, 0))[1] else "torch wrote it as no plain product"


def _write_(proto: Any, chosen: list[tuple[Place, Coded]], ranges: Mapping[str, Range]) -> None:
    """Put the new nodes where the old ones were, and drop the weights that nothing reads any more."""
    from onnx.numpy_helper import to_array

    biases = {place.bias for place, _ in chosen}
    writer = Writer({one.name: to_array(one) for one in proto.graph.initializer if one.name in biases})
    by_output = {str(place.node.output[0]): (place, coded) for place, coded in chosen}
    for node in list(proto.graph.node):
        if node.output and node.output[0] in by_output:
            place, coded = by_output[node.output[0]]
            if ranges:
                static(place, coded, ranges, writer)
            else:
                dynamic(place, coded, writer)
        else:
            writer.nodes.append(node)
    del proto.graph.node[:]
    read = {name for node in writer.nodes for name in node.input}
    proto.graph.node.extend(one for one in writer.nodes if one.op_type != "Transpose" or one.output[0] in read)
    read = {name for graph in graphs(proto.graph) for node in graph.node for name in node.input}
    read |= {one.name for one in proto.graph.output}
    kept = [one for one in proto.graph.initializer if one.name in read]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend([*kept, *writer.constants.values()])


def _ranges(
    made: Written, model: nn.Module, chosen: list[tuple[Place, Coded]], data: Iterable[Any], percentile: float
) -> dict[str, Range]:
    """The least and the most that each layer is given on the data, and that a convolution gives."""
    from onnx import ModelProto, helper

    names = {place.x for place, _ in chosen} | {str(p.node.output[0]) for p, _ in chosen if not p.linear}
    seen = ModelProto()
    seen.CopyFrom(made.proto)
    given = {one.name for one in made.proto.graph.input}
    there = {one.name for one in made.proto.graph.output} | given
    seen.graph.output.extend([helper.make_empty_tensor_value_info(name) for name in sorted(names - there)])
    session = session_of(seen.SerializeToString())
    found: dict[str, list[Range]] = {name: [] for name in names}
    for batch in Calibration(data, model, passes=1):
        example = Example(inspect.signature(model.forward).bind(*batch.args, **batch.kwargs))
        try:
            values = run(session, example)
        except Exception as error:  # onnxruntime's own classes, which are not public
            said = str(error).splitlines()[0]
            raise ValueError(f"data: onnxruntime cannot take a batch of {example.described()} ({said})") from error
        fed = dict(zip((one.name for one in session.get_inputs()), example.tensors().values(), strict=True))
        for name, limits in found.items():
            array = (values[name] if name in values else fed[name]).numpy()
            least, most = np.percentile(array, [100 - percentile, percentile]).tolist()
            limits.append((least, most))
    whole = percentile == 100
    return {
        name: (
            (min(a for a, _ in limits), max(b for _, b in limits))
            if whole
            else (float(np.mean([a for a, _ in limits])), float(np.mean([b for _, b in limits])))
        )
        for name, limits in found.items()
    }


def _attribute(node: Any, name: str) -> int:
    return next((int(one.i) for one in node.attribute if one.name == name), 0)
