"""The two halves of a joint graph: what each computes, in which order."""

from __future__ import annotations

from collections.abc import Sequence

from tunecast.records import NamedTuple
from tunecast.tape.build.compiler.graph import EXTERN, INPUT, POINTWISE, Graph, Value


class Pass(NamedTuple):
    """The forward or the backward half of a joint graph."""

    order: list[int]
    """Values that are computed."""
    inputs: set[int]
    """Values that are given."""
    outputs: list[int]


def forward_pass(graph: Graph, outputs: Sequence[int], saved: Sequence[int]) -> Pass:
    wanted = [*outputs, *saved]
    needed = graph.ancestors(wanted)
    inputs = {n for n in needed if graph.values[n].kind == INPUT}
    return Pass(sorted(needed - inputs), inputs, wanted)


def backward_pass(graph: Graph, saved: Sequence[int], tangents: Sequence[int], gradients: Sequence[int]) -> Pass:
    """What is computed again is computed as late as can be (`reordering_to_mimic_autograd_engine`)."""
    inputs = {*saved, *tangents}
    needed = graph.ancestors(gradients, inputs)
    nodes = sorted(needed - inputs)
    first = next((at for at, n in enumerate(nodes) if set(graph.values[n].inputs) & set(tangents)), 0)
    order: list[int] = []
    placed = set(inputs)
    for node in nodes[first:]:
        missing = graph.ancestors((node,), placed) - placed
        order += sorted(missing)
        placed |= missing
    return Pass(order, inputs & needed, list(gradients))


def _is_pointwise_to(graph: Graph, value: Value) -> bool:
    """Whether all that is made of it is made element by element (`should_prefer_unfused_addmm`)."""
    users = [graph.values[user] for user in value.users]
    return all(_is_pointwise_to(graph, user) if user.is_view else user.op in POINTWISE for user in users)


def with_products_added(graph: Graph, half: Pass, exact: bool = False) -> Pass:
    """A product that is only added to something of its shape is added by the library, when the other is there
    (fx_passes/post_grad.py, `addmm`): the gradient of a weight that is embedding and head. What the product is made of
    lives until then."""
    values, order = graph.values, half.order
    returned = set(half.outputs)
    for number in list(order):
        total = values[number]
        if total.op != "add" or len(total.inputs) != 2 or len(total.shape) != 2:
            continue
        if number not in returned and (not exact or _is_pointwise_to(graph, total)):
            continue
        for place in (0, 1):
            product, other = values[total.inputs[place]], values[total.inputs[1 - place]]
            between = [total]
            while product.op == "permute" and len(product.users) == 1:
                between.append(product)
                product = values[product.inputs[0]]
            same = product.op == "mm" and product.dtype == other.dtype and other.shape == product.shape
            if same and len(product.users) == 1 and product.number in order and len(between) % 2:
                total.op, total.kind, total.inputs = "addmm", EXTERN, (other.number, *product.inputs)
                total.call = product.call  # a matrix added, not a row: no workspace but the product's own
                for source in product.inputs:
                    values[source].users.append(number)
                gone = {product.number, *[value.number for value in between[1:]]}
                order = [n for n in order if n not in gone]
                break
    return half._replace(order=order)


def moved_to_uses(graph: Graph, half: Pass) -> Pass:
    """Of a pass without history: what makes an operation's inputs comes right before it, unless somebody earlier needs
    it (fx_passes/post_grad.py, `reorder_for_locality`)."""
    values, order = graph.values, list(half.order)
    movable = {number for number in order if values[number].op != "getitem"}
    seen: set[int] = set()
    for at in range(len(order) - 1, -1, -1):
        seen.add(order[at])
        for source in values[order[at]].inputs:
            if source in movable and seen.issuperset(n for n in values[source].users if n in half.order):
                order.remove(source)
                order.insert(at - 1, source)
    return half._replace(order=order)
