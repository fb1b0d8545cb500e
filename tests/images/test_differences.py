"""Two wheels are compared by their Python files."""

import zipfile
from pathlib import Path

from tests.images.differences import between


def wheel(path: Path, files: dict[str, str]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def test_files_are_compared_by_name_and_content(tmp_path: Path) -> None:
    first = wheel(tmp_path / "one.whl", {"a.py": "1", "b.py": "1", "c.py": "1", "lib.so": "1"})
    second = wheel(tmp_path / "two.whl", {"a.py": "1", "b.py": "2", "d.py": "1", "lib.so": "2"})
    found = between(first, second)
    assert (found.same, found.differing, found.only_first, found.only_second) == (1, ["b.py"], ["c.py"], ["d.py"])
