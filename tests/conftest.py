"""For all tests: a shell that starts the run in the background makes it ignore interrupts, and so all its children."""

from __future__ import annotations

import signal

signal.signal(signal.SIGINT, signal.default_int_handler)
