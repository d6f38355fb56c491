"""Reading a problem's name and its file's text for an export."""

from __future__ import annotations

import pytest

from cupilot.domain import problems
from cupilot.exports.winner import depends_on_mode, slug


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
