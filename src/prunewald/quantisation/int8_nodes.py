"""Nodes of ONNX in which onnxruntime computes with int8 weights: whole numbers all through, or float around them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from prunewald.quantisation.int8_codes import Coded

Range = tuple[float, float]


@dataclass(frozen=True)
class Place:
    """A node that multiplies by a weight: by which parameter, and which way round."""

    node: Any
    param: str
    turned: bool = False  # the node takes it as (inputs, outputs)
    direct: bool = False  # and so it is in the model, as in Hugging Face's Conv1D

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

    known: Mapping[str, Any]  # arrays
    nodes: list[Any] = field(default_factory=list)
    constants: dict[str, Any] = field(default_factory=dict)
    _made: set[str] = field(default_factory=set)

    def constant(self, name: str, array: Any) -> str:
        """An initializer, once."""
        from onnx import numpy_helper

        self.constants.setdefault(name, numpy_helper.from_array(np.array(array, order="C"), name))
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


def static(place: Place, coded: Coded, ranges: Mapping[str, Range], writer: Writer) -> None:
    """Nodes of quantisation around the node and on its weight, by which onnxruntime finds its int8 kernels."""
    codes, scales, zero = _weight(place, coded, writer, place.turned)
    out = str(place.node.output[0])
    weight = writer.node("DequantizeLinear", [codes, scales, zero], [f"{codes}_float"], axis=int(place.turned))
    inputs = [rounded(place.x, ranges[place.x], writer), weight]
    if place.bias:
        inputs.append(_rounded_bias(place, coded, ranges[place.x], writer))
    inner = out if out not in ranges else f"{out}_exact"
    writer.node(place.node.op_type, inputs, [inner], **_attributes(place.node))
    if inner != out:
        rounded(inner, ranges[out], writer, out)


def _rounded_bias(place: Place, coded: Coded, limits: Range, writer: Writer) -> str:
    """A bias in steps of the products that it is added to, 32 bits: without it there is no kernel for a last layer."""
    bias = writer.known.get(place.bias)
    if bias is None or bias.ndim != 1:
        return place.bias
    scales = np.float32(_grid(limits)[0]) * np.broadcast_to(_numbers(coded.scales.reshape(-1)), bias.shape)
    whole = np.clip(np.round(bias / scales.astype(np.float64)), -(2**31), 2**31 - 1).astype(np.int32)
    name = f"{place.bias}_{place.node.output[0]}"
    written = [writer.constant(f"{name}_codes", whole), writer.constant(f"{name}_scale", scales)]
    return writer.node("DequantizeLinear", written, [f"{name}_float"], axis=0)


def rounded(name: str, limits: Range, writer: Writer, out: str = "") -> str:
    """A value as uint8 and back, between these limits, which zero lies in."""
    scale, middle = _grid(limits)
    scales = writer.constant(f"{name}_int8_scale", np.float32(scale))
    zero = writer.constant(f"{name}_int8_zero", np.uint8(middle))
    whole = writer.node("QuantizeLinear", [name, scales, zero], [f"{name}_int8"])
    return writer.node("DequantizeLinear", [whole, scales, zero], [out or f"{name}_back"])


def _grid(limits: Range) -> tuple[float, int]:
    """The scale of uint8 between two limits, and where zero is."""
    least, most = min(limits[0], 0.0), max(limits[1], 0.0)
    scale = (most - least) / 255 or 1.0
    return scale, round(min(255.0, max(0.0, -least / scale)))


def _weight(place: Place, coded: Coded, writer: Writer, turned: bool) -> tuple[str, str, str]:
    """The names of codes, scales and zero points; `turned`: as (inputs, outputs)."""
    codes, scales = _numbers(coded.codes), _numbers(coded.scales.reshape(-1))
    scales = scales if coded.scales.numel() > 1 else scales[0]
    return (
        writer.constant(f"{place.param}_codes" + "_turned" * turned, codes.T if turned else codes),
        writer.constant(f"{place.param}_scale", scales),
        writer.constant(f"{place.param}_zero", np.zeros_like(scales, np.int8)),
    )


def _numbers(tensor: Tensor) -> Any:
    return tensor.detach().cpu().numpy()


def _attributes(node: Any) -> dict[str, Any]:
    from onnx import helper

    return {one.name: helper.get_attribute_value(one) for one in node.attribute}
