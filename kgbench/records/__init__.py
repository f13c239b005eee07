"""Records: the result of one evaluation, what it is of, and where it is kept."""

from __future__ import annotations

from kgbench.records.estimate import NO_INTERVAL_OF_RANKS, NO_INTERVAL_OF_SITES, Estimate, rounded
from kgbench.records.facts import FACTS_SCHEMA, facts_table, parse_facts, read_facts
from kgbench.records.identity import (
    DatasetRef,
    Identity,
    LocalizerRef,
    Strict,
    Truth,
    WeightHashes,
    canonical_json,
)
from kgbench.records.journal import Journal
from kgbench.records.planted import Curve, CurvePoint, Effect, Pathway, Planted
from kgbench.records.provenance import Provenance, code_stamp, collect_provenance, other_versions
from kgbench.records.record import (
    FIGURES,
    NOT_APPLICABLE,
    Cost,
    Environment,
    Ranking,
    Record,
    Row,
    Scoring,
    SiteScore,
    measured_on,
)
from kgbench.records.store import (
    SEAL,
    DamagedRecordWarning,
    RecordStore,
    StoredRecord,
    choose_run,
    claimed_id,
    load_record,
    parse_record,
    read_record,
    renew_seal,
)

__all__ = [
    "FACTS_SCHEMA",
    "FIGURES",
    "NOT_APPLICABLE",
    "NO_INTERVAL_OF_RANKS",
    "NO_INTERVAL_OF_SITES",
    "SEAL",
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
    "Strict",
    "Truth",
    "WeightHashes",
    "canonical_json",
    "choose_run",
    "claimed_id",
    "code_stamp",
    "collect_provenance",
    "facts_table",
    "load_record",
    "measured_on",
    "other_versions",
    "parse_facts",
    "parse_record",
    "read_facts",
    "read_record",
    "renew_seal",
    "rounded",
]
