"""Export a package: a PyTorch custom operator, and the reference's module with the kernel inside."""

from __future__ import annotations

from cupilot.exports import texts
from cupilot.exports.winner import Winner, is_cuda

_TORCH = "torch>=2.4"
"""The first with ``torch.library.custom_op``."""
_CUDA_REQUIREMENTS = (
    "cuda-bindings",
    "nvidia-cuda-nvrtc",
    "nvidia-cuda-runtime",
    "nvidia-cuda-cccl",
    "nvidia-cuda-crt",
)


_RUNTIME = ("_buffers", "_structure", "_proven")


def files(winner: Winner) -> dict[str, str]:
    """Return the package with pyproject, README and test."""
    winner.refuse_side_effects()
    package, spec = f"cupilot_{winner.slug}", winner.spec()
    cuda = is_cuda(winner)
    launcher = "_launch_cuda" if cuda else "_launch_cpu"
    sources = winner.device_files() if cuda else {"problem.h": winner.header}
    own = winner.facts.problem_hash
    schema = ", ".join(f"Tensor {item['name']}" for item in spec["given"])
    result = ", ".join("Tensor" for _ in spec["outputs"])
    values = {
        "package": package,
        "slug": winner.slug,
        "title": texts.one_line(winner.report.problem.name),
        "headline": texts.headline(winner),
        "launcher": launcher,
        "source": winner.source_file,
        "schema": f"({schema}) -> {result if len(spec['outputs']) == 1 else f'({result})'}",
        "evidence": texts.evidence(winner),
        "device": texts.one_line(winner.device_name()),
        "policy": winner.facts.policy.value,
        "tolerance": repr(max(law.tolerance for law in winner.evaluation.laws)),
        "torch_device": spec["target"],
        "requirements": _requirements(winner) if cuda else f'"{_TORCH}"',
        "compiler": _compiler(winner) if cuda else "g++",
    }
    return {
        "pyproject.toml": texts.template("pyproject.toml.txt", **values),
        "README.md": texts.template("package_readme.md.txt", **values),
        f"{package}/__init__.py": texts.template("package_init.py.txt", **values),
        **{f"{package}/{name}.py": texts.runtime(f"{name}.py") for name in (*_RUNTIME, launcher)},
        # Two lines first: a coding cookie, which the judge does not obey, counts in the first two lines only.
        f"{package}/reference.py": f"# The reference, as it was submitted (SHA-256 {own[:16]}).\n#\n{_source(winner)}",
        f"{package}/spec.json": texts.as_json(spec),
        f"{package}/evaluation.json": winner.evaluation.model_dump_json(indent=2) + "\n",
        f"{package}/{winner.source_file}": winner.kernel.source,
        **{f"{package}/include/{name}": text for name, text in sources.items()},
        f"tests/test_{winner.slug}.py": texts.template("package_test.py.txt", **values),
    }


def _source(winner: Winner) -> str:
    return winner.reference


def _compiler(winner: Winner) -> str:
    measured = "; what was measured was compiled by nvcc" if winner.by_nvcc else ""
    return f"NVRTC (from wheels; no CUDA toolkit{measured})"


def _requirements(winner: Winner) -> str:
    environment = winner.evaluation.environment or winner.preparation.environment
    major = (environment.cuda or "").split(".")[0]
    bound = f">={major},<{int(major) + 1}" if major.isdigit() else ""
    return ", ".join(f'"{name}"' for name in (_TORCH, *(f"{requirement}{bound}" for requirement in _CUDA_REQUIREMENTS)))
