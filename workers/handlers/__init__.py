"""What each kind of step does: one small module a kind.

Each has three functions. ``load`` reads, in a short transaction, what the work needs; ``work`` does it, without a
transaction; ``store`` writes the result and what follows from it, in the transaction that finishes the step.
"""
