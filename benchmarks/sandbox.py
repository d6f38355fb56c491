"""Attack the sandbox of this machine and report: ``python -m benchmarks.sandbox``.

Every attack of ``tests/exploits/attacks.py`` on each kind of sandbox that works here, and the harmless ones outside of
any, where they must succeed. Writes ``benchmarks/results/sandbox.json``; exits 1 where one gets what it wants.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import records
from gpu_worker.sandbox import confine
from gpu_worker.sandbox.sandbox import Sandbox, separates_users, strongest
from tests.exploits.attacks import ATTACKS, BREACHED, breached, clean, run, run_outside


def main() -> int:
    """Attack, print, write; the exit status."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    sandboxes = _sandboxes()
    kinds = list(sandboxes)
    os.environ["CUPILOT_SECRET"] = "what an attack looks for"
    outcomes: list[dict[str, object]] = []
    breaches: list[str] = []
    pointless: list[str] = []
    with (
        tempfile.TemporaryDirectory(prefix="cupilot-sandbox-") as scratch,
        socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        folder, port = Path(scratch) / "own", listener.getsockname()[1]
        victim = subprocess.Popen(["sleep", "3600"])
        try:
            for attack in ATTACKS:
                repelled = 0
                for kind, sandbox in sandboxes.items():
                    clean(folder)
                    through = breached(run(attack, sandbox, folder, port=port, victim=victim.pid))
                    through |= victim.poll() is not None
                    repelled += not through
                    breaches += [f"{attack.name} ({kind})"] if through else []
                outcome: dict[str, object] = {"kind": attack.kind, "attack": attack.name, "repelled_by": repelled}
                if attack.control:
                    clean(folder)
                    effective = BREACHED in run_outside(attack, folder, port=port, victim=victim.pid)
                    outcome["succeeds_without"] = effective
                    pointless += [] if effective else [attack.name]
                outcomes.append(outcome)
                print(outcome, flush=True)
        finally:
            victim.kill()
            victim.wait()
    head = records.stamp()
    head["machine"] += f", Linux {os.uname().release}, landlock ABI {confine.landlock_abi()}"
    record = {
        **head,
        "in_force": f"{strongest()}, {_user(Sandbox())}",
        "sandboxes": kinds,
        "attacks": len(ATTACKS),
        "breaches": breaches,
        "controls_that_fail": pointless,
        "outcomes": outcomes,
    }
    print(f"{len(ATTACKS)} attacks on {len(kinds)} kinds of sandbox, {len(breaches)} breaches")
    records.write(records.RESULTS / "sandbox.json", record, tables=True)
    return 1 if breaches or pointless else 0


def _sandboxes() -> dict[str, Sandbox]:
    """Return the sandboxes by the names that the report uses."""
    sandboxes = []
    if strongest().startswith("bwrap"):
        sandboxes.append(Sandbox("bwrap+seccomp"))
    if confine.landlock_abi() > 0 and (os.geteuid() != 0 or separates_users("landlock+seccomp")):
        sandboxes.append(Sandbox("landlock+seccomp"))
    return {f"{sandbox.kind}, {_user(sandbox)}": sandbox for sandbox in sandboxes}


def _user(sandbox: Sandbox) -> str:
    return "a user id for each program" if sandbox.own_user else "the worker's user id"


if __name__ == "__main__":
    sys.exit(main())
