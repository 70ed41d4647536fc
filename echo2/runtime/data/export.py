"""Parquet export of a ledger, for analysis in any notebook. Called by the command line; needs pyarrow."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import Any

from echo2.errors import UserError
from echo2.runtime.data.ledger_query import LedgerReader
from echo2.runtime.data.states import Entry

ROWS_A_GROUP = 4096


def export_parquet(ledger: LedgerReader, path: Path) -> int:
    """Write every rollout, one a row; returns the rows. Raises UserError without pyarrow or disk space.

    The columns of `Entry`, then prompt_ids, token_ids (int32 lists), logprobs (float64 list), segment_starts
    and segment_versions, environment_starts and environment_ends, null for what never finished. The file
    appears when it is complete.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise UserError(
            "Parquet export needs pyarrow, which is not installed; pip install 'echo2[parquet]'"
        ) from None
    schema = _schema(pa)
    part = path.with_name(f"{path.name}.part")
    total = 0
    try:
        with pq.ParquetWriter(part, schema, compression="zstd") as writer:
            rows = _rows(ledger)
            while batch := list(islice(rows, ROWS_A_GROUP)):
                writer.write_table(pa.Table.from_pylist(batch, schema=schema))
                total += len(batch)
        os.replace(part, path)
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror or error}; check the path, its rights and the free space"
        ) from error
    finally:
        part.unlink(missing_ok=True)
    return total


def _schema(pa: Any) -> Any:
    kinds = {"int": pa.int64(), "str": pa.string(), "float": pa.float64(), "State": pa.string()}
    columns = [(field.name, kinds[str(field.type).split(" ")[0]]) for field in fields(Entry)]
    columns += [("prompt_ids", pa.list_(pa.int32())), ("token_ids", pa.list_(pa.int32()))]
    columns += [("logprobs", pa.list_(pa.float64()))]
    columns += [("segment_starts", pa.list_(pa.int32())), ("segment_versions", pa.list_(pa.int64()))]
    columns += [(f"environment_{edge}", pa.list_(pa.int32())) for edge in ("starts", "ends")]
    return pa.schema(columns)


def _rows(ledger: LedgerReader) -> Iterator[dict[str, Any]]:
    for entry, rollout in ledger.everything():
        row: dict[str, Any] = {field.name: getattr(entry, field.name) for field in fields(Entry)}
        if rollout is not None:
            row |= {name: getattr(rollout, name) for name in ("prompt_ids", "token_ids", "logprobs")}
            row["segment_starts"] = [segment.start for segment in rollout.segments]
            row["segment_versions"] = [segment.version for segment in rollout.segments]
            row["environment_starts"] = [span.start for span in rollout.environment]
            row["environment_ends"] = [span.end for span in rollout.environment]
        yield row
