"""Calls that the tracer records as the simpler calls that they stand for, so that more graphs can be understood.

Most rules are PyTorch's own (:mod:`torch._decomp`); those here are for calls that it has no rule for. A rule says what
a call computes, not how: only the graph is made of it, and expected values come from the call itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import torch

from gpu_worker.reference.derivatives import DERIVATIVES
from gpu_worker.reference.fourier import FOURIER
from gpu_worker.reference.resampling import RESAMPLING
from gpu_worker.reference.small_matrices import SMALL_MATRICES
from gpu_worker.reference.special import SPECIAL

MadeBy = Callable[[torch.Tensor], str | None]
"""The call that made a tensor of the forward pass; None for one that it was given."""

_BACKWARD = (
    *("_fused_rms_norm", "_prelu_kernel", "binary_cross_entropy", "cudnn_batch_norm", "elu", "embedding_dense", "gelu"),
    *("glu", "hardsigmoid", "hardswish", "hardtanh", "huber_loss", "leaky_relu", "log_sigmoid", "logit", "mish"),
    *("max_pool2d_with_indices", "mse_loss", "native_batch_norm", "native_group_norm", "native_layer_norm", "nll_loss"),
    *("nll_loss2d", "reflection_pad1d", "reflection_pad2d", "select", "silu", "slice", "smooth_l1_loss"),
    *("soft_margin_loss", "softplus", "threshold", "unfold"),
)
"""Calls whose derivatives PyTorch has rules for."""
_BY_TORCH = (
    "_log_softmax_backward_data", "_softmax_backward_data", "_unsafe_masked_index",
    "_unsafe_masked_index_put_accumulate", "_weight_norm_interface", "block_diag", "col2im", "ldexp", "max_unpool2d",
    "max_unpool3d", "multi_margin_loss", "mvlgamma", "renorm", "soft_margin_loss", "tril_indices", "triu_indices",
    "vdot", *(f"{name}_backward" for name in _BACKWARD),
)  # fmt: skip
_PREFIXES = tuple(f"aten.{name}." for name in _BY_TORCH)
_EACH = "aten._foreach_"
_SUM, _MEAN, _MAX = range(3)
"""Modes of a bag of embeddings."""


def decomposition(func: Any, made_by: MadeBy) -> Callable[..., Any] | None:
    """Return the rule for a call, or None where there is none; a rule may return NotImplemented."""
    name = str(func)
    if name in _BY_MAKER:
        return partial(_BY_MAKER[name], made_by)
    if name.startswith(_PREFIXES):
        return _torch_rules().get(name)
    if name.startswith(_EACH):
        return partial(_of_each, func)
    return _OWN.get(name) or _into_given_tensors(func)


def decomposed() -> frozenset[str]:
    """Return the names of calls that there are rules for."""
    own = (name.split(".")[1] for name in (*_BY_MAKER, *_OWN))
    return frozenset({*_BY_TORCH, *own})


@cache
def _torch_rules() -> dict[str, Callable[..., Any]]:
    from torch._decomp import decomposition_table  # its import takes a while, and few problems need it

    return {str(call): rule for call, rule in decomposition_table.items() if str(call).startswith(_PREFIXES)}


def _of_each(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Make the call of one tensor for each of a list, beside its items of other lists."""
    name = func._overloadpacket.__name__.removeprefix("_foreach_")
    one = getattr(torch.ops.aten, {"norm": "linalg_vector_norm"}.get(name, name))
    if name.removesuffix("_") in ("addcmul", "addcdiv") and len(args) > 3:
        args, kwargs = args[:3], {"value": args[3], **kwargs}
    given = [*args, *kwargs.values()]
    count = len(args[0])
    made = []
    for place in range(count):
        items = [item[place] if isinstance(item, list | tuple) and len(item) == count else item for item in given]
        made.append(one(*items[: len(args)], **dict(zip(kwargs, items[len(args) :], strict=True))))
    return None if name.endswith("_") else made


def _into_given_tensors(func: Any) -> Callable[..., Any] | None:
    """Return the rule for a call with ``out=``: its form without, then a copy; None for another call."""
    arguments = func._schema.arguments
    outs = [item.name for item in arguments if item.kwarg_only and item.alias_info and item.alias_info.is_write]
    if not outs:
        return None
    wanted = [(item.name, str(item.type)) for item in arguments if item.name not in outs]
    packet = func._overloadpacket
    for overload in (getattr(packet, name) for name in packet.overloads()):
        if [(item.name, str(item.type)) for item in overload._schema.arguments] == wanted:
            return partial(_copied_out, overload, outs)
    return None


def _copied_out(functional: Callable[..., Any], outs: Sequence[str], *args: Any, **kwargs: Any) -> Any:
    """Write results into tensors of their shapes and types; others are resized, or decide the arithmetic's type."""
    given = [kwargs.pop(name) for name in outs]
    made = functional(*args, **kwargs)
    results = [made] if isinstance(made, torch.Tensor) else list(made)
    if [(item.shape, item.dtype) for item in results] != [(item.shape, item.dtype) for item in given]:
        return NotImplemented
    for target, result in zip(given, results, strict=True):
        target.copy_(result)
    return given[0] if isinstance(made, torch.Tensor) else tuple(given)


def _embedding_bag(  # noqa: PLR0917 - the call's own arguments
    made_by: MadeBy,
    weight: torch.Tensor,
    indices: torch.Tensor,
    offsets: torch.Tensor,
    _scale_grad: bool = False,
    mode: int = _SUM,
    _sparse: bool = False,
    per_sample_weights: torch.Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[torch.Tensor, ...]:
    """Rows of a table, summed, averaged or maximised over bags, which begin at ``offsets``; an empty bag gives zeros.

    PyTorch gives bags of one length, the rows of indices with two dimensions, offsets of its own making.
    """
    bags = len(offsets) - int(include_last_offset)
    rows = weight[indices] if per_sample_weights is None else weight[indices] * per_sample_weights.unsqueeze(1)
    counts = (indices != padding_idx).to(weight.dtype).unsqueeze(1) if padding_idx >= 0 else None
    if counts is not None:
        rows = torch.where(counts > 0, rows, float("-inf") if mode == _MAX else 0.0)
    counts = torch.ones_like(rows[:, :1]) if counts is None else counts
    if made_by(offsets) == "aten.arange.start_step" and len(indices) % bags == 0:
        rows, counts = (values.reshape(bags, -1, values.shape[1]) for values in (rows, counts))
        total, members = rows.amax(1) if mode == _MAX else rows.sum(1), counts.sum(1)
    else:
        positions = torch.arange(len(indices), device=weight.device, dtype=offsets.dtype)
        bag = torch.searchsorted(offsets[:bags], positions, right=True) - 1
        members = counts.new_zeros(bags, 1).index_add(0, bag, counts)
        empty = weight.new_zeros(bags, weight.shape[1])
        if mode == _MAX:
            total = empty.scatter_reduce(0, bag.unsqueeze(1).expand_as(rows), rows, "amax", include_self=False)
        else:
            total = empty.index_add(0, bag, rows)
    if mode == _MEAN:
        total = total / members.clamp(min=1)
    elif mode == _MAX:
        total = torch.where(members > 0, total, 0.0)
    return total, offsets, offsets, offsets


def _as_strided(
    made_by: MadeBy, values: torch.Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Any:
    """Elements by their places in a contiguous result of another call; what was given is followed as it lies.

    A diagonal stays a view, which ``fill_diagonal_`` writes to.
    """
    diagonal = values
    while diagonal.dim() > 1:
        diagonal = diagonal.diagonal()
    if (diagonal.shape, diagonal.stride()) == (tuple(size), tuple(stride)) and values.dim() > 1 and not storage_offset:
        return diagonal
    if made_by(values) is None or not values.is_contiguous() or values.storage_offset() or storage_offset:
        return NotImplemented
    places = torch.zeros((), dtype=torch.int64, device=values.device)
    for count, step in zip(size, stride, strict=True):
        places = places.unsqueeze(-1) + torch.arange(count, device=values.device) * step
    return values.reshape(-1)[places]


def _repeat_interleave(repeats: torch.Tensor, *, output_size: int | None = None) -> torch.Tensor:
    """Each index as often as ``repeats`` says, for as many elements as there are."""
    ends = repeats.cumsum(0)
    size = int(ends[-1]) if output_size is None else output_size
    places = torch.arange(size, device=repeats.device, dtype=repeats.dtype)
    return torch.searchsorted(ends, places.to(ends.dtype), right=True).to(repeats.dtype)


def _segment_reduce(
    values: torch.Tensor,
    kind: str,
    *,
    lengths: torch.Tensor | None = None,
    offsets: torch.Tensor | None = None,
    axis: int = 0,
    initial: float | None = None,
    **_: Any,
) -> Any:
    """Reduce neighbouring rows, by the lengths of segments or the places where they begin and end."""
    given = lengths if lengths is not None else offsets
    if given is None or given.dim() != 1 or axis or initial is not None or not values.is_floating_point():
        return NotImplemented
    ends = given.cumsum(0) if lengths is not None else given[1:]
    places = torch.arange(len(values), device=values.device, dtype=ends.dtype)
    segments = torch.searchsorted(ends, places, right=True).clamp(max=len(ends) - 1)
    empty, how = {
        "sum": (0.0, "sum"),
        "mean": (0.0, "sum"),
        "max": (float("-inf"), "amax"),
        "min": (float("inf"), "amin"),
        "prod": (1.0, "prod"),
    }[kind]
    index = segments.reshape(-1, *(1 for _ in values.shape[1:])).expand_as(values)
    result = values.new_full((len(ends), *values.shape[1:]), empty).scatter_reduce(0, index, values, how)
    if kind != "mean":
        return result
    counts = given if lengths is not None else given.diff()
    return result / counts.reshape(-1, *(1 for _ in values.shape[1:])).to(values.dtype)


def _nanmedian(values: torch.Tensor, axis: int = -1, keep: bool = False) -> tuple[torch.Tensor, ...]:
    """Return the lower median of the numbers and its place; a sort puts NaN behind them."""
    ordered, places = values.sort(dim=axis, stable=True)
    middle = (values.isnan().logical_not().sum(axis, keepdim=True) - 1).clamp(min=0) // 2
    found = ordered.gather(axis, middle), places.gather(axis, middle)
    return found if keep else tuple(item.squeeze(axis) for item in found)


def _fake_quantize(
    values: torch.Tensor, scale: torch.Tensor | float, zero: torch.Tensor | float, least: int, most: int
) -> tuple[torch.Tensor, torch.Tensor]:
    whole = (values * (1 / scale)).round() + zero
    return (whole.clamp(least, most) - zero) * scale, (whole >= least) & (whole <= most)


def _fake_quantize_per_channel(  # noqa: PLR0917 - the call's own arguments
    values: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor, axis: int, least: int, most: int
) -> tuple[torch.Tensor, torch.Tensor]:
    shape = [size if place == axis % values.dim() else 1 for place, size in enumerate(values.shape)]
    return _fake_quantize(values, scale.reshape(shape), zero.reshape(shape).to(values.dtype), least, most)


def _fake_quantize_with_tensors(
    values: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor, _enabled: torch.Tensor, least: int, most: int
) -> tuple[torch.Tensor, torch.Tensor]:
    return _fake_quantize(values, scale, zero.to(values.dtype), least, most)


def _pdist(values: torch.Tensor, p: float = 2) -> torch.Tensor:
    """Distances of each row from the later ones."""
    first, second = torch.triu_indices(len(values), len(values), 1, device=values.device)
    distances: torch.Tensor = torch.linalg.vector_norm(values[first] - values[second], p, 1)
    return distances


def _isin(
    values: torch.Tensor,
    others: torch.Tensor,
    *,
    assume_unique: bool = False,  # noqa: ARG001
    invert: bool = False,
) -> torch.Tensor:
    found = (values.unsqueeze(-1) == others.reshape(-1)).any(-1)
    return ~found if invert else found


def _histc(values: torch.Tensor, bins: int = 100, least: float = 0, most: float = 0) -> Any:
    """Counts of values in bins of one width; where no range is given, it follows from the values."""
    if least >= most:
        return NotImplemented
    flat = values.reshape(-1)
    places = ((flat - least) / (most - least) * bins).clamp(0, bins - 1).long()
    inside = (flat >= least) & (flat <= most)
    return values.new_zeros(bins).index_add(0, places, inside.to(values.dtype))


def _bincount(values: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0) -> Any:
    """Counts of whole numbers; not where their largest decides how many counts there are."""
    if values.numel() == 0 or int(values.max()) >= minlength:
        return NotImplemented
    ones = torch.ones_like(values) if weights is None else weights
    return ones.new_zeros(minlength).index_add(0, values.long(), ones)


def _int_mm(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """A product of 8-bit integers, summed in 32 bits: exact in float64."""
    return (first.double() @ second.double()).to(torch.int32)


def _bilinear(
    first: torch.Tensor,
    weight: torch.Tensor,
    second: torch.Tensor,
    *axes: Sequence[int],
    unroll_dim: int = 1,  # noqa: ARG001
) -> Any:
    """``sum(first[b, i] * weight[o, i, j] * second[b, j])``, as ``nn.Bilinear`` asks for it."""
    if [list(item) for item in axes] != [[1, 3], [0], [1, 2], [2, 3]]:
        return NotImplemented
    outputs, size, _ = weight.shape
    half = (first @ weight.permute(1, 0, 2).reshape(size, -1)).reshape(len(first), outputs, -1)
    return (half * second.unsqueeze(1)).sum(-1)


def _lstm_cell(
    inputs: torch.Tensor, hidden: torch.Tensor, cell: torch.Tensor, *biases: torch.Tensor | None
) -> tuple[torch.Tensor, ...]:
    gates = sum((bias for bias in biases if bias is not None), inputs + hidden)
    enter, forget, new, leave = gates.chunk(4, 1)
    cell = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
    return leave.sigmoid() * cell.tanh(), cell, gates


def _gru_cell(
    inputs: torch.Tensor, hidden: torch.Tensor, state: torch.Tensor, *biases: torch.Tensor | None
) -> tuple[torch.Tensor, ...]:
    first, second = (*biases, None, None)[:2]
    inputs = inputs if first is None else inputs + first
    hidden = hidden if second is None else hidden + second
    (reset, update, new), (own_reset, own_update, own_new) = inputs.chunk(3, 1), hidden.chunk(3, 1)
    new = (new + (reset + own_reset).sigmoid() * own_new).tanh()
    return (state - new) * (update + own_update).sigmoid() + new, hidden


def _rrelu(
    values: torch.Tensor,
    _noise: torch.Tensor,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    *_: Any,
) -> Any:
    """A rectifier with a random slope, as it is outside of training: the slope is the middle one."""
    if training:
        return NotImplemented
    return torch.nn.functional.leaky_relu(values, (lower + upper) / 2)


def _shrunk_backward(gradient: torch.Tensor, values: torch.Tensor, bound: float) -> torch.Tensor:
    return torch.where((values >= -bound) & (values <= bound), 0.0, gradient)


def _multilabel_margin_loss(values: torch.Tensor, labels: torch.Tensor, reduction: int) -> tuple[torch.Tensor, ...]:
    """Margins of the classes before the first negative label over all others (PyTorch's rule counts later ones)."""
    classes = torch.arange(values.shape[-1], device=values.device)
    listed = (labels >= 0).long().cumprod(-1) > 0
    targets = ((labels.unsqueeze(-1) == classes) & listed.unsqueeze(-1)).any(-2)
    margins = 1 - values.gather(-1, labels.clamp(min=0)).unsqueeze(-1) + values.unsqueeze(-2)
    counted = listed.unsqueeze(-1) & ~targets.unsqueeze(-2)
    losses = torch.where(counted, margins.clamp(min=0), 0).sum((-2, -1)) / values.shape[-1]
    return (losses, losses.mean(), losses.sum())[reduction], targets.to(values.dtype)


_BY_MAKER: dict[str, Callable[..., Any]] = {
    "aten._embedding_bag_forward_only.default": _embedding_bag,
    "aten.as_strided.default": _as_strided,
}
"""Rules that ask what made their arguments."""

_OWN: dict[str, Callable[..., Any]] = {
    **DERIVATIVES,
    **FOURIER,
    **RESAMPLING,
    **SMALL_MATRICES,
    **SPECIAL,
    "aten.nanmedian.default": lambda values: _nanmedian(values.reshape(-1))[0],
    "aten.nanmedian.dim": _nanmedian,
    "aten.segment_reduce.default": _segment_reduce,
    "aten.view.dtype": torch.ops.aten.view_copy.dtype,
    "aten.repeat_interleave.Tensor": _repeat_interleave,
    "aten.fake_quantize_per_channel_affine_cachemask.default": _fake_quantize_per_channel,
    "aten.fake_quantize_per_tensor_affine_cachemask.default": _fake_quantize,
    "aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default": _fake_quantize_with_tensors,
    "aten._int_mm.default": _int_mm,
    "aten._pdist_forward.default": _pdist,
    "aten._thnn_fused_gru_cell.default": _gru_cell,
    "aten._thnn_fused_lstm_cell.default": _lstm_cell,
    "aten._trilinear.default": _bilinear,
    "aten.bincount.default": _bincount,
    "aten.hardshrink_backward.default": _shrunk_backward,
    "aten.histc.default": _histc,
    "aten.isin.Tensor_Tensor": _isin,
    "aten.multilabel_margin_loss_forward.default": _multilabel_margin_loss,
    "aten.rrelu_with_noise.default": _rrelu,
    "aten.softshrink_backward.default": _shrunk_backward,
}
