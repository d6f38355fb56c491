"""A small operator, as users bring theirs."""

RELU = """import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.relu(x)


def get_inputs():
    return [torch.randn(256, 1024)]


def get_init_inputs():
    return []
"""
