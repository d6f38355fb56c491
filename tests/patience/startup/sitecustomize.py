"""Let programs that judge have quick judges and known peaks: Python runs this file as it starts.

For those whose environment has :data:`tests.patience.judges.QUICK_STACK`. ``CUPILOT_TEST_FORWARD_SECONDS`` is the limit
of a reference's first forward pass.
"""

import os
import sys

JUDGING = {"gpu", "gpu_box.py", "reproduce.py"}
"""Words that programs which judge are started with: ``workers gpu`` in a stack, and files."""

if JUDGING & {word.rpartition("/")[2] for word in sys.orig_argv}:
    from tests.patience.devices import share_peaks, use_patient_judges

    use_patient_judges(setattr, quick=True)
    share_peaks(setattr)

    if seconds := os.environ.get("CUPILOT_TEST_FORWARD_SECONDS"):
        from tests.stages import shorten

        shorten(setattr, "the first forward pass", seconds=float(seconds))
