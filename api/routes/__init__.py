"""The endpoints, one module a noun. They load their inputs and call functions that decide."""
