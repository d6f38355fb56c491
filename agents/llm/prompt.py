"""Prompt files and the data put into them. Untrusted text (references, kernels, logs) is fenced as data.

The wording lives in ``agents/prompts/``; each call records the hash of the file it was made from.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from string import Template

from agents.interface import Briefing
from cupilot.domain.attribution import Credit, CreditOutcome
from cupilot.domain.hardware import generation
from cupilot.domain.header import render
from cupilot.domain.pool import Lesson, PoolMatch
from cupilot.domain.problem import NumericsPolicy, Target, TensorSpec
from cupilot.domain.roofline import Zone
from cupilot.domain.strategy import Strategy
from cupilot.domain.technique import catalogue
from cupilot.domain.value import digest

MAX_DATA_CHARACTERS = 40_000
"""Longest piece of untrusted text in a prompt: about 10,000 tokens."""


_CLOSING = re.compile(r"<\s*/\s*data", re.IGNORECASE)
"""Spellings that a model may read as the end of a fence."""


@dataclass(frozen=True)
class Prompt:
    """A prompt file."""

    text: str
    hash: str

    def messages(self, **values: str) -> tuple[dict[str, str], ...]:
        """Return the conversation: the system's rule, then the file with its values filled in."""
        content = Template(self.text).substitute(values)
        return ({"role": "system", "content": system()}, {"role": "user", "content": content})

    def fill(self, **values: str) -> str:
        """Return the file with its values filled in, as a part of another prompt."""
        return Template(self.text).substitute(values)


@cache
def prompt(name: str) -> Prompt:
    """Return the file ``agents/prompts/<name>.md``.

    The hash is of everything that a prompt made from it may say by itself: the file, the system's rule and the parts
    that files are put together from.
    """
    text = read(name)
    return Prompt(text, digest([text, *(read(part) for part in PARTS)]))


ARCHITECTURES = (80, 90, 100)
"""GPU generations that a file speaks of."""
PARTS = (
    "system",
    "reply_code",
    "reply_explained",
    "reply_revision",
    *(f"contract_{target.value}" for target in Target),
    *(f"example_{target.value}" for target in Target),
    *(f"policy_{target.value}_{policy.value}" for target in Target for policy in NumericsPolicy),
    *(f"arch_sm_{number}" for number in ARCHITECTURES),
    "idioms_sm_90",
    "patch_reply",
)
"""Files that go into other files' prompts."""


@cache
def read(name: str) -> str:
    """Return a prompt file's text."""
    return files("agents").joinpath("prompts", f"{name}.md").read_text(encoding="utf-8")


def system() -> str:
    """Return the rule that every conversation begins with."""
    return read("system").strip()


def data(label: str, text: str) -> str:
    """Return untrusted text, fenced so that it cannot close its own fence, and cut where it is too long."""
    if len(text) > MAX_DATA_CHARACTERS:
        half = MAX_DATA_CHARACTERS // 2
        text = f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"
    safe = _CLOSING.sub(r"<\\/data", text)
    return f'<data name="{label}">\n{safe}\n</data>'


def reference(briefing: Briefing) -> str:
    """Return the PyTorch reference, as data."""
    return data("reference.py", briefing.problem.source)


def facts(briefing: Briefing) -> str:
    """Return what was found out about the problem, in a few lines."""
    known = briefing.facts
    named = (node.op for node in known.graph.nodes if node.op.startswith("aten."))
    calls = " ".join(op.removeprefix("aten.").removesuffix(".default") for op in named)
    products = f", of them {_count(known.matmul_flops)} in matrix products" if known.matmul_flops else ""
    text = (
        f"It runs these ATen calls: {calls[:1_000]}. Family {known.op_class}: {_count(known.flops)} operations"
        f"{products}; {size(known.compulsory_bytes)} must be read and written at least."
    )
    if briefing.baseline_us is not None:
        text += (
            f" PyTorch eager takes {time(briefing.baseline_us)} under the same numerics policy on the quiet device;"
            " every kernel's speed is told against it."
        )
    return text


def operator(briefing: Briefing) -> str:
    """Return the reference with all that is known of it, which is the same in every question about a job."""
    named = f"Tensors of a launch plan: {tensors(briefing)}."
    parts = [reference(briefing), facts(briefing), named, roofline(briefing)]
    return "\n".join(part.rstrip() for part in parts if part)


def about(briefing: Briefing) -> dict[str, str]:
    """Return what a question about a job says first, by placeholder: what changes least comes first.

    The policy stands there too, so that no strategy is planned for units that it forbids.
    """
    return {"hardware": hardware(briefing), "operator": f"{operator(briefing)}\n- Numerics policy {_policy(briefing)}"}


def writing(briefing: Briefing) -> dict[str, str]:
    """Return the same of a question whose answer is code: with the rules for kernels, and ``problem.h``."""
    rules = {"contract": contract(briefing), "header": header(briefing), "language": LANGUAGE[briefing.target]}
    return {"hardware": hardware(briefing), "operator": operator(briefing)} | rules


LANGUAGE = {Target.CUDA: "cuda", Target.CPU: "cpp"}
"""Name of the source's fenced block."""


def hardware(briefing: Briefing) -> str:
    """Return the device with its limits, measured peaks where they may be shown, and what its generation can do."""
    return _gpu(briefing) if briefing.target is Target.CUDA else _cpu(briefing)


def _gpu(briefing: Briefing) -> str:
    device = briefing.device
    lines = [
        f"- {device.name} ({device.arch}): {device.units} SMs, each with {device.registers_per_unit} 32-bit registers "
        f"and {device.threads_per_unit} threads; up to {device.shared_bytes_per_block} bytes of shared memory a block; "
        f"{size(device.cache_bytes)} of L2; {size(device.memory_bytes)} of memory. On the chip in all: "
        f"{size(4 * device.registers_per_unit * device.units)} of registers, "
        f"{size((device.shared_bytes_per_block + RESERVED_SHARED) * device.units)} of shared memory."
    ]
    known = max((number for number in ARCHITECTURES if number <= generation(device.arch)), default=None)
    return "\n".join([*lines, *_peaks(briefing), *([read(f"arch_sm_{known}").strip()] if known else [])]) + "\n"


RESERVED_SHARED = 1024
"""Bytes of an SM's shared memory that a block cannot have: the system keeps them for each."""


def _cpu(briefing: Briefing) -> str:
    device = briefing.device
    line = (
        f"- {device.name} ({device.arch}): {device.units} cores may be used, one OpenMP thread each; "
        f"{size(device.cache_bytes)} of last-level cache; {size(device.memory_bytes)} of memory."
    )
    return "\n".join([line, *_peaks(briefing)]) + "\n"


def _peaks(briefing: Briefing) -> list[str]:
    peaks, policy = briefing.peaks, briefing.facts.policy
    if peaks is None:
        return []
    tensor = peaks.tensor_flops.get(policy, 0.0)
    matrix = f", {tensor / 1e12:.0f} TFLOP/s on {_MATRIX[briefing.target]} ({policy.value})" if tensor else ""
    rate = f"{peaks.scalar_flops / 1e12:.3g} TFLOP/s fp32 (a multiply-add counts two)"
    launch = f"; a launch takes {peaks.launch_seconds * 1e6:.1f} us" if briefing.target is Target.CUDA else ""
    return [f"- Measured on this device: memory {peaks.bandwidth / 1e12:.3g} TB/s, {rate}{matrix}{launch}."]


def roofline(briefing: Briefing) -> str:
    """Return zone, floor and what there is to gain; empty where roofline guidance is off."""
    place = briefing.placement
    if place is None:
        return ""
    units, matrix = _SCALAR[briefing.target], _MATRIX[briefing.target]
    ridges = f"the ridge point {place.ridge_scalar:.3g} of {units}"
    if place.ridge_tensor != place.ridge_scalar:
        ridges = f"the ridge points {place.ridge_scalar:.3g} ({units}) and {place.ridge_tensor:.3g} ({matrix})"
    zone = _ZONES[place.zone].format(near=_NEAR[briefing.target], matrix=matrix, units=units)
    text = (
        f"- Roofline: {place.intensity:.3g} operations a byte against {ridges}: zone *{place.zone.value}*, "
        f"{zone}. At the measured peaks no correct kernel takes less than {time(place.floor_us)} (memory "
        f"{time(place.memory_floor_us)}, operations of the best algorithms known {time(place.compute_floor_us)})"
    )
    if briefing.baseline_us is not None:
        text += f", {briefing.baseline_us / place.floor_us:.2f} times as fast as PyTorch eager"
    if place.direct_us is not None and place.direct_us > place.floor_us:
        text += (
            f". The reference's operations as they are written, counted directly, would take {time(place.direct_us)}:"
            " a calculated share of them is no measurement, and a faster algorithm may need fewer"
        )
    return text + ".\n"


_ZONES = {
    Zone.MEMORY: "memory traffic decides: touch each byte once and keep enough of them in flight",
    Zone.MIDDLE: "{matrix} would make it memory-bound, {units} compute-bound: both must be served at once",
    Zone.COMPUTE: "arithmetic decides: reuse operands in registers and {near}, and keep the units fed",
}


_SCALAR = {Target.CUDA: "CUDA cores", Target.CPU: "the cores' vector units"}
_MATRIX = {Target.CUDA: "tensor cores", Target.CPU: "dot-product instructions for 16 bits"}
_NEAR = {Target.CUDA: "shared memory", Target.CPU: "caches"}
"""Memory next to registers that holds operands."""


def _count(number: float) -> str:
    return f"{number:.3g}"


def size(count: float) -> str:
    """Return a number of bytes in words."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count:.0f} bytes"


def time(microseconds: float) -> str:
    """Return a duration in words."""
    return f"{microseconds / 1e3:.3g} ms" if microseconds >= 1e3 else f"{microseconds:.3g} us"


def tensors(briefing: Briefing) -> str:
    """Return the tensors that a plan may name."""
    return "; ".join(_tensor(spec) for spec in briefing.facts.tensors)


def _tensor(spec: TensorSpec) -> str:
    layout = "" if spec.contiguous else f" strides {list(spec.strides)}"
    return f"{spec.name} ({spec.role.value}, {spec.dtype.value} {list(spec.shape)}{layout})"


def contract(briefing: Briefing) -> str:
    """Return the rules that a kernel must keep, for the briefing's target, with one example."""
    target, device = briefing.target.value, briefing.device
    rules = Template(read(f"contract_{target}")).substitute(
        arch=built_for(device.arch) if briefing.target is Target.CUDA else device.arch,
        compiler=briefing.compiler or _COMPILERS[briefing.target],
        shared_bytes=str(device.shared_bytes_per_block),
        policy=_policy(briefing),
    )
    parts = [rules.strip(), f"Example\n{read(f'example_{target}').strip()}"]
    if generation(device.arch) >= 90 and device.arch.startswith("sm_9"):
        parts.append(f"Bulk copies\n{read('idioms_sm_90').strip()}")
    return "\n\n".join([*parts, *_bans(briefing)])


def _policy(briefing: Briefing) -> str:
    """Return the numerics policy: its name, and what it allows on the target."""
    return read(f"policy_{briefing.target.value}_{briefing.facts.policy.value}").strip()


_COMPILERS = {Target.CUDA: "NVRTC", Target.CPU: "g++"}
"""Compilers' names, for a briefing without a version."""


def _bans(briefing: Briefing) -> list[str]:
    """Return what people have banned from the job; whoever writes code must know what the names mean."""
    if not briefing.banned:
        return []
    known = {name: catalogue().get(name) for name in briefing.banned}
    named = [f"{name} ({technique.summary.rstrip('.')})" if technique else name for name, technique in known.items()]
    return [f"Banned from this job, under any name: {'; '.join(named)}."]


def built_for(arch: str) -> str:
    """Return the architecture that device code is compiled for: from sm_90 on, the architecture-specific one."""
    return f"{arch}a" if generation(arch) >= 90 else arch


def header(briefing: Briefing) -> str:
    """Return ``problem.h`` without tunables, and what is different in it for each of several workloads."""
    text = data("problem.h", render(briefing.facts, {}))
    if not briefing.workloads:
        return text
    heaviest = set(render(briefing.facts, {}).splitlines())
    parts = [
        f"{workload.name} (weight {workload.weight:g}): "
        + (" ".join(line for line in render(facts, {}).splitlines() if line not in heaviest) or "as above")
        for workload, facts in briefing.workloads
    ]
    rules = (
        f"One kernel with one plan is built, checked and timed for each of {len(parts)} workloads. It must be right at "
        "all of them; its speedup is their weighted geometric mean. So take every size from the header's constants and "
        "every element type from macros such as X_FLOAT16 (none: float). What the header has instead for each:"
    )
    return f"{text}\n\n{rules}\n{data('workloads', chr(10).join(parts))}"


def strategy_json(strategy: Strategy) -> str:
    """Return a strategy in the form in which models answer."""
    techniques = [
        {"id": use.id, "parameters": use.parameters} | ({"meaning": use.meaning} if use.meaning else {})
        for use in strategy.techniques
    ]
    return json.dumps({"techniques": techniques, "rationale": strategy.rationale})


def pool(matches: tuple[PoolMatch, ...]) -> str:
    """Return the retrieved entries: what worked, and what failed as a warning."""
    if not matches:
        return "Nothing about similar operators."
    lines = []
    for match in matches:
        entry = match.entry
        gained = (
            f"{entry.speedup:.2f}x over eager"
            if entry.speedup is not None
            else f"failed: {entry.failure or entry.verdict}"
        )
        gained += f" ({match.why.words()})" if match.why.tries or match.why.imported else ""
        gained += _credits(entry.credits)
        lines.append(f"{entry.problem_name} on {entry.device_class}: {gained}: {strategy_json(entry.strategy)}")
    failed = any(match.entry.speedup is None for match in matches)
    warning = "\nThose that failed are warnings: do not ask for them again as they stand." if failed else ""
    return data("pool", "\n".join(lines)) + warning


def lessons(taught: Sequence[Lesson]) -> str:
    """Return kernels of similar problems before and after a change; those that are too long for it in words only."""
    left = MAX_LESSONS_CHARACTERS
    texts: list[str] = []
    for lesson in taught:
        head = _lesson_words(lesson)
        kernels = [("before", lesson.before), ("after", lesson.after)]
        code = "\n".join(data(f"{name}: kernel", kernel.source) for name, kernel in kernels if kernel is not None)
        texts.append(f"{head}\n{code}" if len(code) <= left else head)
        left -= len(code) if len(code) <= left else 0
    note = "They are of other problems: take over what helped, not their sizes, names or plans."
    return "\n\n".join([note, *texts]) if texts else "Nothing."


MAX_LESSONS_CHARACTERS = 24_000
"""Code of lessons in a prompt: about 8,000 tokens."""


def _lesson_words(lesson: Lesson) -> str:
    before = "from scratch" if lesson.speedup_before is None else f"from {lesson.speedup_before:.2f}x"
    gained = f", {lesson.speedup / lesson.speedup_before:.2f} times as fast" if lesson.speedup_before else ""
    words = f"{lesson.problem}: {before} to {lesson.speedup:.2f}x over eager{gained}: {lesson.change}"
    return data("lesson", f"{words}\n{strategy_json(lesson.strategy)}")


def _credits(credits: tuple[Credit, ...]) -> str:
    """Return what techniques of a winner were measured to be worth there, by taking each away."""
    worth = [f"{credit.technique} {credit.factor.median:.2f}x" for credit in credits if credit.factor is not None]
    worth += [f"{credit.technique} nothing" for credit in credits if credit.outcome is CreditOutcome.SAME_CODE]
    return f"; measured worth of its techniques: {', '.join(worth)}" if worth else ""
