"""The input of all exports: a proven kernel, with its launches resolved for the shapes it was proven for."""

from __future__ import annotations

import ast
import keyword
import re
from dataclasses import dataclass, replace
from typing import Any

from cupilot.domain import device_headers
from cupilot.domain.errors import InvalidInput
from cupilot.domain.evaluation import Evaluation, Preparation, WorkloadResult
from cupilot.domain.header import render
from cupilot.domain.imported import ImportedFile
from cupilot.domain.kernel import Kernel, LaunchPlan, resolve
from cupilot.domain.problem import ProblemFacts, Role, Target, TensorSpec
from cupilot.domain.strategy import Strategy
from cupilot.domain.syntax import parse
from cupilot.domain.workload import Workload, specialised
from cupilot.reports.job import SOURCE_FILES
from cupilot.schemas import Report

_DEPENDS_ON_MODE = re.compile(
    r"training|dropout|batch_?norm|track_running_stats|rrelu|multihead|transformer", re.IGNORECASE
)
"""Names in a reference whose result may differ between train() and eval(); it was proven as constructed."""
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"\n]+)[>"][^\n]*$', re.MULTILINE)
_WIDELY_ALIGNED = re.compile(r"(?:align|vector_size)[^;{}]*?\b(?:128|256)", re.IGNORECASE)
_STATELESS_PREFIXES = ("aten._native_batch_norm_legit_no_training", "aten._native_batch_norm_legit.no_stats")


class ExportRefused(InvalidInput):
    """This format cannot carry what the kernel needs."""

    code = "export_refused"


def refuse_in_place(facts: ProblemFacts) -> None:
    """Refuse a reference that changes its inputs, which earlier releases accepted: its kernel does not."""
    inputs = {spec.name for spec in facts.with_role(Role.INPUT)}
    for node in facts.graph.nodes:
        in_place = node.op.startswith("aten.") and node.op.split(".")[1].endswith("_")
        written = node.args[0] if in_place and node.args else None
        if isinstance(written, dict) and written.get("ref") in inputs:
            raise ExportRefused(
                f"in_place_reference: the reference changes its input {written['ref']}, which its kernel does not",
                hint="submit a reference that works on a copy, or returns the changed tensor",
            )


def slug(name: str) -> str:
    """Return a problem's name as a name that Python takes: ``23_Softmax.py`` begins with a digit."""
    short = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")[:40]
    return short if short.isidentifier() and not keyword.iskeyword(short) else f"kernel_{short}".strip("_")


def depends_on_mode(source: str) -> bool:
    """Return True if a reference uses what may differ between train() and eval(); words in comments do not count."""
    names = set()
    for node in ast.walk(parse(source)):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.keyword(arg=str(name)) | ast.alias(name=name):
                names.add(name)
    return any(_DEPENDS_ON_MODE.search(name) for name in names)


@dataclass(frozen=True)
class Winner:
    """Proven kernel with its report, problem and source."""

    report: Report
    kernel: Kernel
    """With the tunable values that were measured."""
    evaluation: Evaluation
    """At the shapes that it is exported for."""
    preparation: Preparation
    reference: str
    """The problem's file, at the same shapes."""
    workload: Workload | None = None
    """These shapes, of a problem with several: the heaviest."""
    name: str | None = None
    """Name of package, operator and files; the problem's if None."""

    @classmethod
    def of(cls, report: Report, name: str | None = None) -> Winner:
        """Make a winner from a report, whose candidate counts; ``name`` takes the place of the problem's."""
        candidate = report.candidate
        assert candidate.kernel is not None
        assert candidate.evaluation is not None
        if candidate.kernel.plan is None:
            raise ImportedFile(
                "an imported file is not exported: it is in its own format already",
                hint="GET /v1/jobs/{job}/result has it, with the evidence",
            )
        refuse_in_place(report.preparation.facts)
        plan = candidate.kernel.plan.with_values(candidate.evaluation.tunables)
        kernel = Kernel(target=candidate.kernel.target, source=candidate.kernel.source, plan=plan)
        winner = cls(report, kernel, candidate.evaluation, report.preparation, report.problem.source, name=name)
        return winner._at_heaviest()

    def _at_heaviest(self) -> Winner:
        """Return the winner as it was measured at the heaviest workload, where the problem has any."""
        part = max(self.evaluation.workloads, key=lambda part: part.workload.weight, default=None)
        if part is None:
            return self
        own = {name: getattr(part, name) for name in WorkloadResult.model_fields if name != "workload"}
        return replace(
            self,
            evaluation=self.evaluation.model_copy(update={**own, "workloads": ()}),
            reference=specialised(self.reference, part.workload),
            workload=part.workload,
        )

    @property
    def facts(self) -> ProblemFacts:
        """Of the problem."""
        return self.preparation.facts

    @property
    def plan(self) -> LaunchPlan:
        """With the measured tunable values."""
        return self.kernel.plan

    @property
    def strategy(self) -> Strategy | None:
        """As aligned with the code, else as asked for."""
        return self.report.candidate.aligned_strategy or self.report.candidate.strategy

    @property
    def slug(self) -> str:
        """The export's name as a part of Python names."""
        return slug(self.name or self.report.problem.name)

    @property
    def source_file(self) -> str:
        """File name of the kernel's source."""
        return SOURCE_FILES[self.kernel.target]

    @property
    def header(self) -> str:
        """The text of ``problem.h``."""
        return render(self.facts, self.plan.values())

    def device_name(self) -> str:
        """Return what it was measured on."""
        return (self.evaluation.environment or self.preparation.environment).device.name

    def spec(self) -> dict[str, Any]:
        """Return what a launcher must know, as JSON.

        Tensors, launches with all expressions evaluated, compiler options.
        """
        environment = self.evaluation.environment or self.preparation.environment
        resolved = resolve(self.kernel, self.facts)
        outputs = self.facts.with_role(Role.OUTPUT)
        return {
            "name": self.slug,
            "target": self.kernel.target.value,
            "arch": environment.device.arch,
            "device": environment.device.name,
            "policy": self.facts.policy.value,
            "depends_on_mode": depends_on_mode(self.reference),
            "given": [_tensor(item) for item in self.facts.tensors if item.role is not Role.OUTPUT],
            "outputs": [_tensor(item) for item in outputs],
            "workspace": dict(resolved.workspace),
            "alignment": self.alignment(),
            "launches": [launch.model_dump(mode="json") for launch in resolved.launches],
            "options": self.options(),
        }

    def alignment(self) -> int:
        """Return the bytes at whose multiples each tensor begins for the kernel.

        Kernels are promised 256. PyTorch begins tensors in a CPU's memory at multiples of 64, so that nearly all would
        be copied: there a kernel has more only where its source says that it relies on more.
        """
        return 256 if is_cuda(self) or _WIDELY_ALIGNED.search(self.kernel.source) else 64

    def options(self) -> list[str]:
        """Return the compiler's options that were measured with, as NVRTC knows them: it compiles what is exported."""
        flags = self.evaluation.build.flags if self.evaluation.build else ()
        if is_cuda(self) and not flags:
            raise ExportRefused(
                "the record of this kernel does not say how it was compiled",
                hint="measure it again, and export that result: cupilot remeasure JOB",
            )
        kept = [flag for flag in flags if not flag.startswith("--ptxas-options")]
        if not self.by_nvcc:
            return kept
        return [*(flag for flag in kept if flag != "--expt-relaxed-constexpr"), "--device-as-default-execution-space"]

    @property
    def by_nvcc(self) -> bool:
        """True if nvcc made the machine code that was measured."""
        return self.evaluation.build is not None and self.evaluation.build.compiler.startswith("nvcc ")

    def device_files(self) -> dict[str, str]:
        """Return ``cuda``: the kernel's source and what it may include, by name."""
        wanted = [*_INCLUDE.findall(self.kernel.source)]
        stand_ins = {name: text for name, text in device_headers.STAND_INS.items() if name in wanted}
        return {"common.h": device_headers.COMMON, "problem.h": self.header, **stand_ins}

    def refuse_side_effects(self) -> None:
        """Refuse a reference that changes its own buffers: a kernel, which only computes outputs, cannot replace it."""
        state = {item.name for item in self.facts.with_role(Role.PARAMETER, Role.BUFFER)}
        for node in self.facts.graph.nodes:
            used = set(_refs(node.args)) & state
            name = node.op.split(".")[1] if node.op.count(".") else node.op
            in_place = name.endswith("_") and bool(state & set(_refs(node.args)[:1]))
            running = "batch_norm" in name and True in node.args and any("running" in ref for ref in used)
            if in_place or (running and not node.op.startswith(_STATELESS_PREFIXES)):
                raise ExportRefused(
                    f"the reference changes its own state ({node.op}), which a kernel does not do",
                    hint="export the bundle, or submit the operator in evaluation mode",
                )


def inlined(source: str, files: dict[str, str]) -> str:
    """Return a source with the files that it includes put in the place of their first inclusion."""
    pending = dict(files)

    def replace(match: re.Match[str]) -> str:
        if match[1] not in files:
            return match[0]
        return pending.pop(match[1], "").replace("#pragma once\n", "")

    return _INCLUDE.sub(replace, source)


def is_cuda(winner: Winner) -> bool:
    """Return whether it runs on a GPU."""
    return winner.kernel.target is Target.CUDA


def _refs(args: tuple[Any, ...]) -> list[str]:
    return [
        str(argument["ref"]) for argument in args if isinstance(argument, dict) and isinstance(argument.get("ref"), str)
    ]


def _tensor(spec: TensorSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "role": spec.role.value,
        "dtype": spec.dtype.value,
        "shape": list(spec.shape),
        "strides": list(spec.strides),
    }
