"""The small compiler of the playbook: graphs of ATen calls as launches over index maps, for what no template knows.

:mod:`~agents.playbook.compiler.lowering` turns the graph into tensors that are defined by typed terms,
:mod:`~agents.playbook.compiler.groups` cuts them into groups joined by workspace,
:mod:`~agents.playbook.compiler.fused` joins those over the same rows, and the nests of each target render
a group as one launch. A naive, right kernel exists for every supported call.
"""
