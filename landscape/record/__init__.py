"""What the documents of a landscape on disk say of it, as typed values."""

from landscape.record.checks import MARKS, Check, Checks, CheckState
from landscape.record.compared import BitsRecord, ComparedRecord, StepsRecord
from landscape.record.connection import BarrierRecord, ConnectionRecord, WayRecord, finite_or_none
from landscape.record.convexity import EIG_MAX, EIG_MIN, EIGENVALUES, RATIO, ConvexityRecord
from landscape.record.document import CHANCE, Record, parse, parse_axis, plain
from landscape.record.layers import BREAKING, LAYER_STATISTICS, LayersRecord
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
from landscape.record.paths import PathRecord, path_records
from landscape.record.ranges import AxisEnd, FoundAxis, FoundRange, TargetRule

__all__ = [
    "BREAKING",
    "CHANCE",
    "EIGENVALUES",
    "EIG_MAX",
    "EIG_MIN",
    "LAYER_STATISTICS",
    "MARKS",
    "RATIO",
    "AxisEnd",
    "AxisRecord",
    "BarrierRecord",
    "BitsRecord",
    "Check",
    "CheckRecord",
    "CheckState",
    "Checks",
    "ComparedRecord",
    "ConnectionRecord",
    "ConvexityRecord",
    "EngineChoice",
    "FoundAxis",
    "FoundRange",
    "IdentityRecord",
    "ImportRecord",
    "JobRecord",
    "LayersRecord",
    "LevelRecord",
    "PathRecord",
    "PlanRecord",
    "PrecisionError",
    "ProgressRecord",
    "Provenance",
    "RandomData",
    "Record",
    "StepsRecord",
    "TargetRule",
    "TermRecord",
    "TrialRecord",
    "WayRecord",
    "WorkerRecord",
    "finite_or_none",
    "parse",
    "parse_axis",
    "path_records",
    "plain",
]
