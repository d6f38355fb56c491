"""Export a proven kernel in the format in which it is used: generated from kernel, launch plan and problem facts.

Makes texts only: nothing is compiled or run here. Exported code is the files of ``runtime/``, as they are, with data
beside them (source, header, sizes, evidence), so that no source has to survive being pasted into another language.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum

from cupilot.exports import cupy_file, modelnew, reproduction, torch_package
from cupilot.exports.winner import ExportRefused, Winner
from cupilot.reports.packing import packed
from cupilot.schemas import Report

__all__ = ["ExportFormat", "ExportRefused", "Winner", "archive", "files", "refusals", "result_archive"]


class ExportFormat(StrEnum):
    """Form that a kernel can be exported as."""

    TORCH = "torch"
    """A package with a PyTorch custom operator and a module that falls back to the reference."""
    KERNELBENCH = "kernelbench"
    """One file with ``ModelNew``, by KernelBench's conventions."""
    CUPY = "cupy"
    """One file with a function on CuPy arrays."""
    BUNDLE = "bundle"
    """All that was measured, and a script that measures it again."""


_MAKERS: Mapping[ExportFormat, Callable[[Winner], dict[str, str]]] = {
    ExportFormat.TORCH: torch_package.files,
    ExportFormat.KERNELBENCH: modelnew.files,
    ExportFormat.CUPY: cupy_file.files,
    ExportFormat.BUNDLE: reproduction.files,
}


def files(winner: Winner, form: ExportFormat) -> dict[str, str]:
    """Return the export's files by path.

    Raises :class:`ExportRefused` where the format cannot carry what the kernel needs.
    """
    return _MAKERS[form](winner)


def refusals(winner: Winner) -> dict[ExportFormat, str | None]:
    """Return why each format is refused; None where it can be had."""
    reasons: dict[ExportFormat, str | None] = {}
    for form, make in _MAKERS.items():
        try:
            make(winner)
        except ExportRefused as error:
            reasons[form] = error.message
        else:
            reasons[form] = None
    return reasons


def archive(winner: Winner, form: ExportFormat) -> bytes:
    """Return the same as a zip."""
    return packed(files(winner, form))


def result_archive(report: Report) -> bytes:
    """Return a result as a zip that stands on its own; of an imported file too, which has no other format."""
    return packed(reproduction.result_files(report))
