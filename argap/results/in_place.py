"""Replace a result of many files as one.

A kill leaves the earlier result, or a new one ready to be put in place. The new files are first written to the
subfolder `NEW`, which appears once it is complete. Then they get their names in the folder, for which a full disk has
room; meanwhile the result has no ``gap.json``, without which a folder is no result.
"""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from argap.files.atomic import replacing
from argap.files.regular import check_replaceable

NEW = ".new"
GAP = "gap.json"


def whole(folder: Path) -> Path:
    """Return the folder with the files of a result: `NEW` if a run was killed before all were in place."""
    return folder / NEW if (folder / NEW / GAP).is_file() else folder


def put_in_place(folder: Path, not_always: Sequence[str] = ()) -> None:
    """Replace the result in ``folder`` by the one in its `NEW`, if any; after a kill, the next call continues.

    ``not_always``: files of the earlier result that go unless the new one has them. Other files stay. The caller holds
    the lock of ``folder``. Raises `FormatError`, before anything is changed, if one of these names belongs to anything
    but a file.
    """
    new = folder / NEW
    if (new / GAP).is_file():
        paths = [path for path in new.rglob("*") if path.is_file() and path != new / GAP]
        names = [GAP, *not_always, *(path.relative_to(new) for path in paths)]
        check_replaceable(folder / name for name in names)
        (folder / GAP).unlink(missing_ok=True)
        for name in not_always:
            if not (new / name).is_file():
                (folder / name).unlink(missing_ok=True)
        for path in paths:
            with replacing(folder / path.relative_to(new)) as copy:
                _name_again(path, copy)
        os.replace(new / GAP, folder / GAP)
    shutil.rmtree(new, ignore_errors=True)


def _name_again(path: Path, name: Path) -> None:
    """Give a file another name; copy it where the file system has no links."""
    name.unlink()
    try:
        os.link(path, name)
    except OSError:
        shutil.copyfile(path, name)
