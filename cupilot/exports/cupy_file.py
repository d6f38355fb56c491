"""Export a function on CuPy arrays, one file, through ``cupy.RawModule`` (https://docs.cupy.dev, user-defined kernels).

CuPy compiles one source without further files, names its kernels by expressions, launches all of a module's kernels
cooperatively or none, and knows neither clusters nor tensor maps nor architecture-specific instructions: what needs
more is refused.
"""

from __future__ import annotations

import pprint
import re

from cupilot.exports import texts
from cupilot.exports.winner import ExportRefused, Winner, inlined, is_cuda

_ACCELERATED = re.compile(r"\b(wgmma|setmaxnreg|tcgen05)\b")
_TEMPLATE = r"template\s*<[^;{]*?>\s*(?:__launch_bounds__\s*\([^)]*\)\s*|\w+\s+)*__global__[^;{]*?\b%s\s*\("
_OWN_OPTIONS = ("--gpu-architecture", "-arch", "--std", "-std")


def files(winner: Winner) -> dict[str, str]:
    """Return the one file."""
    _refuse(winner)
    spec = winner.spec()
    code = inlined(f'#include "common.h"\n{winner.kernel.source}', winner.device_files())
    names = list(dict.fromkeys(launch["kernel"] for launch in spec["launches"]))
    inputs = [item["name"] for item in spec["given"]]
    text = texts.template(
        "cupy.py.txt",
        headline=texts.headline(winner),
        verdict=winner.evaluation.verdict.value,
        policy=winner.facts.policy.value,
        function=winner.slug,
        parameters=", ".join(inputs),
        given="".join(f"{name}, " for name in inputs).rstrip(),
        code=texts.literal(code),
        names=repr(names),
        options=repr([option for option in spec["options"] if not option.startswith(_OWN_OPTIONS)]),
        cooperative=repr(any(launch["cooperative"] for launch in spec["launches"])),
        spec=pprint.pformat(spec, width=110, sort_dicts=False),
    )
    compile(text, "cupy_file.py", "exec", dont_inherit=True)
    return {f"{winner.slug}_cupy.py": text}


def _refuse(winner: Winner) -> None:
    if not is_cuda(winner):
        raise ExportRefused("CuPy runs on GPUs, and this kernel is for the CPU", hint="name torch or bundle")
    winner.refuse_side_effects()
    spec = winner.spec()
    launches = spec["launches"]
    if any(launch["cluster"] != [1, 1, 1] for launch in launches):
        raise ExportRefused("the plan launches thread-block clusters, which CuPy's RawKernel cannot")
    if any(launch["tensor_maps"] for launch in launches):
        raise ExportRefused("the plan passes tensor maps (TMA), which CuPy does not make")
    if len({launch["cooperative"] for launch in launches}) > 1:
        raise ExportRefused("only some of the launches are cooperative, and CuPy launches all of a module's or none so")
    if _ACCELERATED.search(winner.kernel.source):
        raise ExportRefused("the kernel uses architecture-specific instructions, which CuPy does not compile for")
    if any(item["dtype"] == "bfloat16" for item in (*spec["given"], *spec["outputs"])):
        raise ExportRefused("a tensor is bfloat16, which CuPy has no type for")
    for launch in launches:
        if re.search(_TEMPLATE % re.escape(launch["kernel"]), winner.kernel.source):
            raise ExportRefused(f"kernel {launch['kernel']!r} is a template, which the plan does not name exactly")
