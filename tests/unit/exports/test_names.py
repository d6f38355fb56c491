"""Reading a problem's name and its file's text for an export."""

from __future__ import annotations

import pytest

from cupilot.domain import problems
from cupilot.exports import ExportFormat, Winner, files
from cupilot.exports.winner import depends_on_mode, slug
from tests.unit.exports.winners import GELU, GELU_CPU, winner


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("23_Softmax.py", "kernel_23_softmax_py"),
        ("class", "kernel_class"),
        ("Äö", "kernel"),
        ("Layer norm", "layer_norm"),
    ],
)
def test_a_slug_is_a_name_in_python(name: str, expected: str) -> None:
    assert slug(name) == expected
    assert slug(name).isidentifier()


def test_a_name_takes_the_place_of_the_problems() -> None:
    report = winner("gelu", GELU, GELU_CPU).report
    wide = Winner.of(report, "GELU wide")
    package = files(wide, ExportFormat.TORCH)
    assert {path.partition("/")[0] for path in package if path.endswith("kernel.cpp")} == {"cupilot_gelu_wide"}
    assert 'name = "cupilot_gelu_wide"' in package["pyproject.toml"]
    assert '"torch>=2.4"' in package["pyproject.toml"]
    assert '"cupilot_gelu_wide::gelu_wide"' in package["cupilot_gelu_wide/__init__.py"]
    assert list(files(wide, ExportFormat.KERNELBENCH)) == ["gelu_wide_modelnew.py"]


@pytest.mark.parametrize(
    ("line", "depends"),
    [
        ("return x if self.training else -x", True),
        ("return F.dropout(x, 0.5)", True),
        ("return nn.BatchNorm2d(3)(x)", True),
        ("return nn.InstanceNorm2d(3, track_running_stats=True)(x)", True),
        ("return nn.InstanceNorm2d(3)(x)", False),
        ("return torch.relu(x)  # as in a transformer, without dropout", False),
        ("'as when training'; return x", False),
    ],
)
def test_only_names_in_code_make_a_result_depend_on_the_mode(line: str, depends: bool) -> None:
    assert depends_on_mode(f"def forward(self, x):\n    {line}\n") is depends


def test_no_norm_over_rows_among_the_problems_depends_on_the_mode() -> None:
    rows = ("layer_norm_rows", "rms_norm_rows", "instance_norm", "softmax")
    assert not [name for name in rows if depends_on_mode(problems.load(name).source)]
