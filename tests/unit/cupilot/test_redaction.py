"""Secrets are blanked by shape; source code stays as it was."""

from __future__ import annotations

import pytest

from cupilot.domain.redaction import HIDDEN, REMOVED, redact_message, redact_prompt


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("key sk-abcdefghijklmnop1234 end", "sk-abcdefghijklmnop1234"),
        ("postgresql://user:hunter2@db:5432/x", "hunter2"),
        ("https://me:t0ken@proxy.example/v1", "t0ken"),
        ("OPENAI_API_KEY=abcdef123456789", "abcdef123456789"),
        ('"db_password": "correct-horse-42"', "correct-horse-42"),
        ("db_password: correct-horse-42, host: db", "correct-horse-42"),
        ("ACCESS_TOKEN=abcdef123456789+/=\n", "abcdef123456789"),
        ("(token=abcdef123456789)", "abcdef123456789"),
        ("export API_KEY=abcdef123456789; run", "abcdef123456789"),
        (r'{"log": "token=abcdef123456789\n"}', "abcdef123456789"),
        ("token: ab12cd_34ef56_gh78ij, next", "ab12cd_34ef56_gh78ij"),
        ("Authorization: Bearer abcdef.ghijkl.mnopqr", "abcdef.ghijkl.mnopqr"),
        ("AKIAIOSFODNN7EXAMPLE", "AKIAIOSFODNN7EXAMPLE"),
        ("ghp_0123456789abcdefghij0123", "ghp_0123456789abcdefghij0123"),
        ("-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----", "abc"),
    ],
)
def test_a_secret_is_blanked(text: str, secret: str) -> None:
    clean = redact_prompt(text)
    assert secret not in clean
    assert REMOVED in clean
    line = redact_message(text)
    assert secret not in line
    assert HIDDEN in line


@pytest.mark.parametrize(
    "code",
    [
        "token_count = tokens_per_block * blockDim.x;",
        "constexpr int TOKENS = 4096; // token = one row",
        "self.token = nn.Embedding(vocabulary, 512)",
        "see https://docs.nvidia.com:443/cuda/",
        "a = b ? c : d; float* secret_sauce = out;",
        "const int token=blockIdx.x*TOKENS_PER_BLOCK+threadIdx.x/32;",
        "int token = threadIdx.x/32 + blockIdx.x;",
        "const int num_tokens = tokens_per_block0 * blocks;",
        "tokens = self.embedding2(x)",
        "for (long long token = first_token_of_1[blockIdx.x]; token < last; ++token)",
        "const int num_tokens = HIDDEN_STATES_SIZE0, width = HIDDEN_STATES_DIM1;",
        "const int token=blockIdx.x*TOKENS_PER_BLOCK2+lane_2, head = 0;",
        "int tokens = TOKENS_PER_BLOCK_2 // of one block",
        "    tokens = hidden_states_2d\n    return tokens",
        r'{"source": "    tokens = hidden_states_2d\n    x = 1"}',
        "rotate(num_tokens=hidden_states_2d, width=64)",
    ],
)
def test_code_stays_as_it_is(code: str) -> None:
    assert redact_prompt(code) == code
