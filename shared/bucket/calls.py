"""The calls to the Hub that a bucket is made of: each is made once, ends by its deadline, and fails in a sentence."""

import functools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import httpx2
from huggingface_hub.utils._xet import abort_xet_session

from shared.bucket.client import ending_in
from shared.bucket.deadline import Calls, Overdue
from shared.bucket.failures import PassingError, status_of, translated
from shared.bucket.retries import Limits
from shared.errors import BucketError

T = TypeVar("T")

_LARGEST = 2**50  # bytes; more is no size of a file, and a deadline that long is none

_calls = Calls()  # of the process, as the Xet session is


class BucketClient(Protocol):
    """What is used of huggingface_hub.HfApi; tests record these calls."""

    def batch_bucket_files(
        self,
        bucket_id: str,
        *,
        add: list[tuple[str | Path | bytes, str]] | None = None,
        delete: list[str] | None = None,
    ) -> object: ...

    def download_bucket_files(
        self, bucket_id: str, files: list[tuple[Any, str | Path]], *, raise_on_missing_files: bool = False
    ) -> None: ...

    def get_bucket_paths_info(self, bucket_id: str, paths: Iterable[str]) -> Iterable[Any]: ...

    def list_bucket_tree(
        self, bucket_id: str, prefix: str | None = None, *, recursive: bool | None = None
    ) -> Iterable[Any]: ...


class HubCalls:
    """All raise BucketError, a PassingError where another attempt may help; `what` begins its sentence."""

    def __init__(self, name: str, client: BucketClient, limits: Limits) -> None:
        self._name = name
        self._client = client
        self._limits = limits

    def listed(self, what: str, paths: Sequence[str]) -> list[Any]:
        """Those of the paths that the Hub lists, with their size and xet_hash."""

        def look() -> list[Any]:
            items = _understood(self._client.get_bucket_paths_info(self._name, paths))
            if strange := {item.path for item in items}.difference(paths):
                raise ValueError(f"it lists {sorted(strange)}, which was not asked for")
            return items

        return self._ask(what, look)

    def tree(self, what: str, prefix: str | None, *, recursive: bool) -> list[Any]:
        """Files, and folders where it is not recursive. MissingFileError where the Hub says there is nothing."""
        tree = functools.partial(self._client.list_bucket_tree, self._name, prefix, recursive=recursive)
        return self._ask(what, lambda: _understood(tree()))

    def delete(self, what: str, paths: Sequence[str]) -> None:
        self._ask(what, lambda: self._client.batch_bucket_files(self._name, delete=list(paths)))

    def upload(self, what: str, local: Path, path: str, size: int) -> None:
        self._transfer(what, size, lambda: self._client.batch_bucket_files(self._name, add=[(str(local), path)]))

    def fetch_all(self, what: str, wanted: Sequence[tuple[Any, Path]]) -> None:
        """Download files as they were listed, each to its place."""
        files: list[tuple[Any, str | Path]] = [(item, str(target)) for item, target in wanted]

        def get() -> None:
            try:
                self._client.download_bucket_files(self._name, files, raise_on_missing_files=True)
            except (httpx2.HTTPError, OSError, RuntimeError) as error:
                if status_of(error) == 404:
                    raise PassingError(f"{what}: it is listed, but its bytes are not there; try again later") from None
                raise

        self._transfer(what, sum(item.size for item, _ in wanted), get)

    def _ask(self, what: str, call: Callable[[], T]) -> T:
        return _made(what, call, self._limits.answer, _nothing, "no answer")

    def _transfer(self, what: str, size: int, call: Callable[[], object]) -> None:
        missed = f"its {size / 1e6:.1f} MB have not gone through"
        # Ends every transfer of the process: the others fail too, and are tried again.
        _made(what, call, self._limits.transfer_of(size), abort_xet_session, missed)


def _made(what: str, call: Callable[[], T], seconds: float, abort: Callable[[], None], missed: str) -> T:
    def timed() -> T:
        with ending_in(seconds):
            return call()

    try:
        return _calls.run(timed, seconds, abort)
    except (Overdue, TimeoutError):
        raise PassingError(f"{what}: {missed} within {round(seconds, 1):g} s") from None
    except BucketError:
        raise
    except Exception as error:  # huggingface_hub checks no answer: one of another shape raises anything in it
        raise translated(error, what) from None


def _understood(items: Iterable[Any]) -> list[Any]:
    """Files and folders as they are listed. ValueError for what no Hub lists: huggingface_hub looks at no value."""
    listed = list(items)
    for item in listed:
        is_file = item.type != "directory"
        if not isinstance(item.path, str) or (is_file and not _comparable(item.size, item.xet_hash)):
            raise ValueError(f"it lists {item}")
    return listed


def _comparable(size: object, xet_hash: object) -> bool:
    return type(size) is int and 0 <= size < _LARGEST and (isinstance(xet_hash, str) or not size)


def _nothing() -> None:
    """A call that moves no file ends by the timeout of its request."""
