"""Files that are whole or absent: write to a temporary name beside the target, then rename.

A reader never sees half a file, and a kill at any moment leaves the old file or the new one.
"""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from argap.errors import ArgapError, FormatError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the folder of ``path``; on success it becomes ``path``.

    The data is synced before the rename, so a crash cannot leave an empty file under the final name.
    On an exception the temporary file is removed. Raises `ArgapError` where the disk refuses.
    """
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise ArgapError(
            f"{path}: could not be written ({error.strerror or error}); nothing was left half-written. "
            "Free some space or choose another folder and run the same command again"
        ) from error
    finally:
        with suppress(OSError):  # where even the folder could not be made, there is nothing to remove
            temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write ``text`` in UTF-8, its lines ending alike on every system."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as indented JSON; NaN and infinity are refused, because JSON has neither."""
    write_text(path, json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object. Raises `FormatError` naming the file where it is missing or not an object."""
    try:
        value = json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FormatError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:
        raise FormatError(f"{path}: not readable as JSON ({error})") from error
    if not isinstance(value, dict):
        raise FormatError(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value
