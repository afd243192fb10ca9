"""The seconds and counts by which pools of workers are supervised, and their defaults. Knows no process."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """Seconds, and counts, by which a pool is supervised."""

    first_backoff: float = 0.5
    longest_backoff: float = 30.0
    healthy_after: float = 60.0
    """A process that was ready for so long, or did a job to its end, is not blamed for earlier crashes."""
    strikes: float = 3.0
    """So many processes in a row that died with one job on trial, or with no other, make it the poison."""
    strike_outside: float = 0.5
    """What one counts that was ended or stopped from outside, as far as can be told: it is the job's doing only if
    somebody watches for it."""
    failed_starts: int = 3
    """So many in a row, and the place is broken. What was ended from outside is none."""
    start_stall: float = 180.0
    """Silence (no Loading) after which a process that starts counts as hung."""
    cancel_stall: float = 30.0
    """As `start_stall`, for a process whose only job was cancelled: one step of any engine is shorter."""
    leave: float = 1.0
    """What a process gets to end by itself once its pipe is closed."""
    backlog: int = 20_000
    """Events that may wait for one job's reader. Progress is not counted: only the last is kept."""
    idle_end: float | None = None
    """Without a job for so long, a process is ended; the next job starts another. None: it stays."""
    on_demand: bool = False
    """No process runs before the first job, nor after a crash that left none waiting."""


TIMING = Timing()
