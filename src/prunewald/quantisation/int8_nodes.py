"""Nodes of ONNX in which onnxruntime computes with int8 weights: whole numbers all through, or float around them."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from prunewald.quantisation.int8_codes import Coded

Range = tuple[float, float]


@dataclass(frozen=True)
class Place:
    """A node that multiplies by a weight: which of its inputs that is, and whether rows of the weight are columns."""

    node: Any
    weight: str  # the initializer
    param: str  # the parameter that it is
    turned: bool  # (inputs, outputs)

    @property
    def linear(self) -> bool:
        """Whether it is a product of matrices; otherwise a convolution."""
        return str(self.node.op_type) != "Conv"

    @property
    def x(self) -> str:
        """The value that the weight is multiplied by."""
        return str(self.node.input[0])

    @property
    def bias(self) -> str:
        """The value that is added; empty for none."""
        return str(self.node.input[2]) if len(self.node.input) > 2 else ""


@dataclass
class Writer:
    """New nodes and initializers, and what is already there."""

    nodes: list[Any] = field(default_factory=list)
    constants: dict[str, Any] = field(default_factory=dict)
    _made: set[str] = field(default_factory=set)

    def constant(self, name: str, array: Any) -> str:
        """An initializer, once."""
        from onnx import numpy_helper

        self.constants.setdefault(name, numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def node(self, kind: str, inputs: list[str], outputs: list[str], **attributes: Any) -> str:
        """A node, once by its first output."""
        from onnx import helper

        if outputs[0] not in self._made:
            self._made.add(outputs[0])
            self.nodes.append(helper.make_node(kind, inputs, outputs, name=f"node_{outputs[0]}", **attributes))
        return outputs[0]


def dynamic(place: Place, coded: Coded, writer: Writer) -> None:
    """A product of whole numbers: inputs are rounded as they come, in one range for all of them.

    onnxruntime makes one kernel of it, DynamicQuantizeMatMul.
    """
    codes, scales, zero = _weight(place, coded, writer, turned=True)
    x, out = place.x, str(place.node.output[0])
    whole, scale, middle = (f"{x}_{end}" for end in ("int8", "int8_scale", "int8_zero"))
    writer.node("DynamicQuantizeLinear", [x], [whole, scale, middle])
    product = writer.node("MatMulInteger", [whole, codes, middle, zero], [f"{out}_whole"])
    number = writer.node("Cast", [product], [f"{out}_number"], to=1)
    both = writer.node("Mul", [scale, scales], [f"{out}_scale"])
    scaled = f"{out}_scaled" if place.bias else out
    writer.node("Mul", [number, both], [scaled])
    if place.bias:
        writer.node("Add", [scaled, place.bias], [out])


def static(place: Place, coded: Coded, ranges: dict[str, Range], writer: Writer) -> None:
    """QuantizeLinear and DequantizeLinear around the node and on its weight: onnxruntime takes them for int8 kernels."""
    codes, scales, zero = _weight(place, coded, writer, turned=False)
    out = str(place.node.output[0])
    axis = 1 if place.turned else 0
    weight = writer.node("DequantizeLinear", [codes, scales, zero], [f"{codes}_float"], axis=axis)
    x = rounded(place.x, ranges[place.x], writer)
    inner = out if out not in ranges else f"{out}_exact"
    writer.node(
        place.node.op_type, [x, weight, *([place.bias] if place.bias else [])], [inner], **_attributes(place.node)
    )
    if inner != out:
        rounded(inner, ranges[out], writer, out)


def rounded(name: str, limits: Range, writer: Writer, out: str = "") -> str:
    """A value as uint8 and back, between these limits, which zero lies in."""
    least, most = min(limits[0], 0.0), max(limits[1], 0.0)
    scale = (most - least) / 255 or 1.0
    scales = writer.constant(f"{name}_int8_scale", np.float32(scale))
    zero = writer.constant(f"{name}_int8_zero", np.uint8(round(min(255.0, max(0.0, -least / scale)))))
    whole = writer.node("QuantizeLinear", [name, scales, zero], [f"{name}_int8"])
    return writer.node("DequantizeLinear", [whole, scales, zero], [out or f"{name}_back"])


def _weight(place: Place, coded: Coded, writer: Writer, turned: bool) -> tuple[str, str, str]:
    """The names of codes, scales and zero points; `turned`: as (inputs, outputs), whatever the node takes."""
    codes, scales = _numbers(coded.codes), _numbers(coded.scales.reshape(-1))
    one = place.turned or turned
    kind = f"{place.param}_codes" + ("_turned" if one else "")
    scales = scales if coded.scales.numel() > 1 else scales[0]
    return (
        writer.constant(kind, codes.T if one else codes),
        writer.constant(f"{place.param}_scale", scales),
        writer.constant(f"{place.param}_zero", np.zeros_like(scales, np.int8)),
    )


def _numbers(tensor: Tensor) -> Any:
    return tensor.detach().cpu().numpy()


def _attributes(node: Any) -> dict[str, Any]:
    from onnx import helper

    return {one.name: helper.get_attribute_value(one) for one in node.attribute}
