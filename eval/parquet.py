"""Features as Parquet tables, by pyarrow, which is imported only here."""

import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from gdt.common.errors import UserError
from gdt.common.files import writing

_ATTRIBUTES = b"gdt"


def require_pyarrow(path: Path) -> None:
    """Raise UserError without the package."""
    if importlib.util.find_spec("pyarrow") is None:
        raise UserError(f"{path} needs pyarrow; run pip install 'gdt-video[parquet]', or use .npz or .h5")


def write(path: Path, columns: Mapping[str, np.ndarray], attributes: Mapping[str, str]) -> None:
    """Write rows atomically: columns of text or numbers [n], or lists of one length [n, d]."""
    import pyarrow
    from pyarrow import parquet

    arrays = {}
    for name, values in columns.items():
        arrays[name] = pyarrow.array(np.ascontiguousarray(values).reshape(-1))
        if values.ndim > 1:
            arrays[name] = pyarrow.FixedSizeListArray.from_arrays(arrays[name], values.shape[1])
    table = pyarrow.table(arrays, metadata={_ATTRIBUTES: json.dumps(dict(attributes))})
    with writing(path) as file:
        parquet.write_table(table, file, write_page_checksum=True)


def read(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Columns and attributes of a file of `write`. Raises what pyarrow raises, ValueErrors and OSErrors."""
    require_pyarrow(path)
    from pyarrow import parquet

    table = parquet.read_table(path, page_checksum_verification=True)
    columns = {}
    for name in table.column_names:
        column = table[name].combine_chunks()
        if hasattr(column.type, "list_size"):
            columns[name] = column.flatten().to_numpy().reshape(len(column), -1)
        else:
            columns[name] = column.to_numpy(zero_copy_only=False)
    return columns, json.loads(table.schema.metadata[_ATTRIBUTES])
