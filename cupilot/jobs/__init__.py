"""The life of a job: submission, planning, flow, confirmation, attribution, budgets, steering, learning."""
