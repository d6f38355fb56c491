"""The open schema of flashinfer-bench: definitions, workloads, solutions and traces, read and written."""
