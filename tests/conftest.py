"""What holds for every test process."""

from __future__ import annotations

import signal

# A shell that starts the tests in the background has them ignore Ctrl-C, and so would all they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
