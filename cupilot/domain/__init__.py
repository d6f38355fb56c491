"""Values and pure rules: problems, kernels, strategies, evaluations, jobs, and how populations evolve. No I/O."""
