"""The contents of argap's JSON files as frozen records: ``gap.json``, ``run.json``, ``labels.json``, ``examples.json``.

Reading is strict: a value of the wrong type is an error that names file, key, what was found and what was expected.
Keys that a newer argap added are ignored as long as the file's format number is known.
"""

from argap.files.record import AnyRecord, Count, Record, as_json, read_record, to_record, write_record
from argap.records.difference import FRACTIONS, MOVED, Fidelity, Quantiles
from argap.records.evaluation import (
    LONGEST_WINDOW,
    CheckpointRecord,
    EvaluationRecord,
    EvaluationSpec,
    IndexRecord,
    LeftOut,
    Packing,
    Unit,
)
from argap.records.examples import KNOWN, EarlierOccurrence, Examples, ExampleWindow
from argap.records.gap import (
    ALL,
    AR_HITS,
    COPIES,
    COPY,
    GAP_FORMAT,
    HIT,
    INDUCTION,
    INFINITE,
    MISS,
    NAMED,
    NEW_KEY,
    NO_PREDICTION,
    OTHER,
    RIGHT,
    SLICE,
    THRESHOLD,
    WRONG,
    Bin,
    Bins,
    Closed,
    ClosedShare,
    ContextUse,
    Direction,
    Estimate,
    Gap,
    GapRow,
    Interval,
    Part,
    Sample,
    SliceInfo,
    estimates_of,
    read_gap,
    save_gap,
)
from argap.records.runs import (
    Bos,
    KlReference,
    LabelsRecord,
    RunIdentity,
    RunRecord,
    RunResult,
    ServerRecord,
    SourceRecord,
    ids_of,
)
