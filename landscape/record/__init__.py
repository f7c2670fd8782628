"""What the documents of a landscape on disk say of it, as typed values."""

from landscape.record.checks import MARKS, Check, Checks, CheckState
from landscape.record.document import Record, parse, parse_axis, plain
from landscape.record.parts import (
    AxisRecord,
    CheckRecord,
    EngineChoice,
    IdentityRecord,
    ImportRecord,
    JobRecord,
    LevelRecord,
    PlanRecord,
    PrecisionError,
    ProgressRecord,
    Provenance,
    RandomData,
    TermRecord,
    TrialRecord,
    WorkerRecord,
)

__all__ = [
    "MARKS",
    "AxisRecord",
    "Check",
    "CheckRecord",
    "CheckState",
    "Checks",
    "EngineChoice",
    "IdentityRecord",
    "ImportRecord",
    "JobRecord",
    "LevelRecord",
    "PlanRecord",
    "PrecisionError",
    "ProgressRecord",
    "Provenance",
    "RandomData",
    "Record",
    "TermRecord",
    "TrialRecord",
    "WorkerRecord",
    "parse",
    "parse_axis",
    "plain",
]
