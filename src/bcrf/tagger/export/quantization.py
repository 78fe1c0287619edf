"""Weights of eight bits: a quarter of the size, computed with as floats."""

from __future__ import annotations

from typing import Any

__all__ = ["quantize_weights"]

# Smaller weights are kept as they are.
_LEAST_ENTRIES = 1024


def quantize_weights(model: Any) -> None:
    """Replace the embeddings and the matrices of an ONNX model by int8 weights, in place.

    A row of embeddings, or a column of a matrix, has one scale: max |x| / 127. Rows are multiplied
    by their scale after they are looked up. A runtime converts matrices back when it loads the
    file, so products are as fast and as exact as before.
    """
    import numpy as np
    from onnx import helper, numpy_helper

    graph = model.graph
    arrays = {x.name: x for x in graph.initializer}
    nodes: list[Any] = []
    removed: set[str] = set()
    done: set[str] = set()
    for node in graph.node:
        place = {"Gather": 0, "MatMul": 1, "Gemm": 1}.get(node.op_type)
        name = "" if place is None else node.input[place]
        if name not in arrays or not _is_large_matrix(arrays[name]):
            nodes.append(node)
            continue
        removed.add(name)
        attributes = {x.name: helper.get_attribute_value(x) for x in node.attribute}
        by_row = node.op_type == "Gather" or bool(attributes.get("transB", 0))
        whole, scale, small = (f"{name}.{part}" for part in ("float", "scale", "int8"))
        if name not in done:
            done.add(name)
            values = numpy_helper.to_array(arrays[name])
            scales = np.abs(values).max(axis=1 if by_row else 0, keepdims=True) / 127
            scales = np.where(scales == 0, 1, scales).astype(np.float32)
            rounded = np.rint(values / scales).astype(np.int8)
            graph.initializer.extend(
                [numpy_helper.from_array(rounded, small), numpy_helper.from_array(scales, scale)]
            )
            if node.op_type != "Gather":
                nodes.append(_cast(small, f"{whole}.unscaled"))
                nodes.append(helper.make_node("Mul", [f"{whole}.unscaled", scale], [whole]))
        if node.op_type != "Gather":
            node.input[1] = whole
            nodes.append(node)
            continue
        rows, ids, output = f"{node.output[0]}.rows", node.input[1], node.output[0]
        nodes += [
            helper.make_node("Gather", [small, ids], [f"{rows}.int8"], axis=0),
            _cast(f"{rows}.int8", f"{rows}.unscaled"),
            helper.make_node("Gather", [scale, ids], [f"{rows}.scale"], axis=0),
            helper.make_node("Mul", [f"{rows}.unscaled", f"{rows}.scale"], [output]),
        ]
    kept = [x for x in graph.initializer if x.name not in removed]
    del graph.initializer[:], graph.node[:]
    graph.initializer.extend(kept)
    graph.node.extend(nodes)


def _cast(source: str, target: str) -> Any:
    from onnx import TensorProto, helper

    return helper.make_node("Cast", [source], [target], to=TensorProto.FLOAT)


def _is_large_matrix(array: Any) -> bool:
    from onnx import TensorProto

    dims = array.dims
    return (
        array.data_type == TensorProto.FLOAT
        and len(dims) == 2
        and dims[0] * dims[1] >= _LEAST_ENTRIES
    )
