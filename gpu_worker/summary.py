"""Records as a few lines of text for a person. Kernels and references say part of it: none of it gets further."""

from __future__ import annotations

from collections.abc import Iterable

from cupilot.domain.evaluation import Evaluation, Interval, Preparation, WorkloadResult
from cupilot.domain.hardware import Conditions, Device
from cupilot.domain.imported import KernelKind
from cupilot.domain.roofline import Placement

_INDENT = 11
"""Characters before what a line says, which continuation lines begin with too."""


def printable(text: str) -> str:
    """Return a text of one or several lines without control characters."""
    return "".join(character if character.isprintable() or character == "\n" else " " for character in text)


def entry(text: str) -> str:
    """Return a line of a summary; further lines of its text are indented, so that they are not taken for entries."""
    return printable(text).replace("\n", f"\n{' ' * _INDENT}")


def device(item: Device) -> str:
    """Name, class and size."""
    size = f"{item.units} units, {item.memory_bytes / 2**30:.0f} GiB"
    return f"{item.name} ({item.target.value}, {item.arch}, {size})\nuid {item.uid}"


def preparation(item: Preparation) -> str:
    """Describe what kernels for this problem will be judged by."""
    facts, place = item.facts, item.placement
    lines = [
        f"{facts.op_class}: {', '.join(f'{t.name} {t.dtype.value}{list(t.shape)}' for t in facts.tensors)}",
        f"work       {facts.flops:.4g} flops, {facts.compulsory_bytes:.4g} bytes, intensity {place.intensity:.3g}",
        f"roofline   {place.zone.value}; bound {place.floor_us:.4g} us at measured peaks{_further_bounds(place)}",
        f"eager      {_interval(item.baseline_us)} us",
        f"inputs     {', '.join(f'{law} (tolerance {item.tolerances[law]:.2g})' for law in item.laws)}",
        f"admission  rejected null kernels: {', '.join(sorted(item.admission)) or 'none applicable'}",
    ]
    for part in item.workloads:
        lines.append(
            f"workload   {part.workload.name} (weight {part.workload.weight:g}): {part.workload.text}; "
            f"eager {_interval(part.baseline_us)} us, bound {part.placement.floor_us:.4g} us"
        )
    warnings = [f"warning    {warning}" for warning in item.warnings]
    return _joined([*lines, *warnings, *(f"note       {note}" for note in item.notes)])


def evaluation(item: Evaluation) -> str:
    """Describe an evaluation: verdict, reason, times."""
    imported = item.kernel_kind is KernelKind.IMPORTED
    lines = [f"verdict    {item.verdict.value}{' (imported: host code of its own)' if imported else ''}"]
    if item.failure is not None:
        lines.append(f"failure    {item.failure.kind.value}: {item.failure.message}")
    if item.build is not None and not imported:
        cached = " (cached)" if item.build.cached else ""
        lines.append(f"build      {item.build.compiler}, {item.build.seconds:.2f} s{cached}")
    for law in item.laws:
        lines.append(
            f"input      {law.law}: error {law.error:.2g} of {law.tolerance:.2g} (PyTorch {law.reference_error:.2g})"
        )
    if item.tunables:
        lines.append(f"tunables   {_values(item.tunables)}")
    for point in item.sweep:
        chosen = " (chosen)" if point.tunables == item.tunables else ""
        result = _interval(point.kernel_us) + " us" if point.kernel_us else "failed"
        result += f": {point.failure.kind.value}" if point.failure else ""
        lines.append(f"sweep      {_values(point.tunables)}: {result}{chosen}")
    for comparison in item.comparisons:
        lines.append(
            f"speedup    {_interval(comparison.speedup)} over {comparison.baseline.value} "
            f"({_interval(comparison.kernel_us)} us against {_interval(comparison.baseline_us)} us, "
            f"{comparison.pairs} pairs{' through graphs' if comparison.graphs else ''})"
        )
        if comparison.conditions is not None:
            lines.append(f"conditions {_conditions(comparison.conditions)}")
    lines += [_workload(part) for part in item.workloads]
    if item.handover_us is not None:
        lines.append(
            f"handover   {item.handover_us:.4g} us of the kernel's time copy its result: the speedup is a lower bound"
        )
    lines += [f"unchecked  {text}" for text in item.unchecked]
    if item.profile is not None:
        metrics = ", ".join(f"{name} {value:.1f}" for name, value in sorted(item.profile.metrics.items()))
        source = item.profile.source.value + ("" if item.profile.promoted else " (no counters: not among the fastest)")
        lines.append(f"profile    {source}: {metrics}")
    return _joined([*lines, f"took       {item.seconds:.2f} s"])


def _joined(lines: Iterable[str]) -> str:
    return "\n".join(map(entry, lines))


def _workload(part: WorkloadResult) -> str:
    """Return one workload's result in a line."""
    shown = f"workload   {part.workload.name} ({part.workload.text}): "
    if part.verdict is None:
        return f"{shown}not judged"
    reason = f", {part.failure.kind.value}" if part.failure is not None else ""
    speeds = [f", {_interval(item.speedup)} over {item.baseline.value}" for item in part.comparisons]
    return f"{shown}{part.verdict.value}{reason}{''.join(speeds)}"


def _further_bounds(place: Placement) -> str:
    """Return the time of directly counted operations where it is another, and the bound at stated peaks."""
    direct = f"; operations counted directly {place.direct_us:.4g} us" if place.direct_us else ""
    return direct + (f"; bound {place.stated.floor_us:.4g} us at stated peaks" if place.stated is not None else "")


def _values(tunables: dict[str, int]) -> str:
    return ", ".join(f"{name} {value}" for name, value in sorted(tunables.items()))


def _interval(value: Interval) -> str:
    return f"{value.median:.4g} [{value.low:.4g}, {value.high:.4g}]"


def _conditions(value: Conditions) -> str:
    spans = {f"{name} clock": (span, "MHz") for name, span in sorted(value.clocks_mhz.items())}
    others = {"temperature": (value.temperature_c, "C"), "power": (value.power_w, "W")}
    known = [
        f"{name} {span.low:.0f} to {span.high:.0f} {unit}" for name, (span, unit) in (spans | others).items() if span
    ]
    slowed = [f"{name} in {count} blocks" for name, count in sorted(value.slowed_by.items())]
    return ", ".join([*known, *slowed, f"{value.throttled_blocks} blocks throttled"])
