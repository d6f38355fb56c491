"""Let a stack's GPU worker have quick judges and known peaks: Python runs this file at the start of its processes.

For stacks whose environment has :data:`tests.patience.judges.QUICK_STACK`. ``CUPILOT_TEST_FORWARD_SECONDS`` is the
limit of a reference's first forward pass.
"""

import os
import sys

if "gpu" in sys.orig_argv:  # ``workers gpu``; no other role starts a judge
    from tests.patience.devices import share_peaks, use_patient_judges

    use_patient_judges(setattr, quick=True)
    share_peaks(setattr)

    if seconds := os.environ.get("CUPILOT_TEST_FORWARD_SECONDS"):
        from tests.stages import shorten

        shorten(setattr, "the first forward pass", seconds=float(seconds))
