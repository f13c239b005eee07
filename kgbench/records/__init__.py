"""Records: the result of one evaluation, what it is of, and where it is kept."""

from __future__ import annotations

from kgbench.records.estimate import Estimate
from kgbench.records.facts import FACTS_SCHEMA, facts_table
from kgbench.records.identity import DatasetRef, Identity, LocalizerRef, Truth, WeightHashes, canonical_json
from kgbench.records.journal import Journal
from kgbench.records.planted import Curve, CurvePoint, Effect, Pathway, Planted
from kgbench.records.provenance import Provenance, collect_provenance
from kgbench.records.record import NOT_APPLICABLE, Cost, Environment, Operands, Ranking, Record, Row, Scoring, SiteScore
from kgbench.records.store import DamagedRecordWarning, RecordStore, StoredRecord, load_record

__all__ = [
    "FACTS_SCHEMA",
    "NOT_APPLICABLE",
    "Cost",
    "Curve",
    "CurvePoint",
    "DamagedRecordWarning",
    "DatasetRef",
    "Effect",
    "Environment",
    "Estimate",
    "Identity",
    "Journal",
    "LocalizerRef",
    "Operands",
    "Pathway",
    "Planted",
    "Provenance",
    "Ranking",
    "Record",
    "RecordStore",
    "Row",
    "Scoring",
    "SiteScore",
    "StoredRecord",
    "Truth",
    "WeightHashes",
    "canonical_json",
    "collect_provenance",
    "facts_table",
    "load_record",
]
