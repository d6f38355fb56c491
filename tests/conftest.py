"""For all tests: what the shell and the libraries leave behind in a process is put right."""

from __future__ import annotations

import asyncio
import signal

# A shell that starts the run in the background makes it ignore interrupts, and so all its children.
signal.signal(signal.SIGINT, signal.default_int_handler)

# LiteLLM asks for "the" event loop after each call. Python 3.11 then makes one that nobody closes, and whichever test
# is running when it is collected fails for its sockets. A thread that was told to have none gets none, as in 3.14.
asyncio.set_event_loop(None)
