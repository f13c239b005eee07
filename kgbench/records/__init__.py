"""Records: the result of one evaluation, what it is of, and where it is kept."""

from __future__ import annotations

from kgbench.records.facts import FACTS_SCHEMA, facts_table
from kgbench.records.identity import DatasetRef, Identity, LocalizerRef, WeightHashes, canonical_json
from kgbench.records.journal import Journal
from kgbench.records.provenance import Provenance, collect_provenance
from kgbench.records.record import Cost, Environment, Estimate, Operands, Record, Row, SiteScore
from kgbench.records.store import DamagedRecordWarning, RecordStore, StoredRecord, load_record

__all__ = [
    "FACTS_SCHEMA",
    "Cost",
    "DamagedRecordWarning",
    "DatasetRef",
    "Environment",
    "Estimate",
    "Identity",
    "Journal",
    "LocalizerRef",
    "Operands",
    "Provenance",
    "Record",
    "RecordStore",
    "Row",
    "SiteScore",
    "StoredRecord",
    "WeightHashes",
    "canonical_json",
    "collect_provenance",
    "facts_table",
    "load_record",
]
