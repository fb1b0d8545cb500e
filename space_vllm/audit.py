"""A full recount of the live weights on a thread, in pieces, that goes on across syncs.

A sync that comes in between stops it for a moment; what was counted before follows the sync's changes, which is what a
sum allows. Knows terms of the fingerprint, not what to do about a wrong one.
"""

from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event

from shared import fingerprint
from shared.changes import Change
from shared.types import TensorSpec
from space_vllm.placement import Places

_WORD = 1 << 64


class Audit:
    def __init__(self, places: Places, specs: Mapping[str, TensorSpec]) -> None:
        self._places = places
        self._specs = specs
        self._terms: dict[str, int] = {}
        self._unreadable: list[str] = []
        self._finished = False
        self._stopped = Event()
        self._work: Future[None] | None = None

    @property
    def is_done(self) -> bool:
        return self._finished

    def proceed(self, thread: ThreadPoolExecutor) -> None:
        if self._work is None or self._work.done():
            self._stopped.clear()
            self._work = thread.submit(self._run)

    def stop(self) -> None:
        """Returns when nothing is read any more."""
        self._stopped.set()
        if self._work is not None and not self._work.cancel():
            self._work.result()

    def follow(self, changes: Iterable[Change]) -> None:
        for change in changes:
            if change.spec.name in self._terms:
                gain = fingerprint.change(change.spec, change.indices, change.old, change.new)
                self._terms[change.spec.name] += gain

    def differing(self, terms: Mapping[str, int]) -> list[str]:
        """The tensors whose live values are not those of `terms`."""
        wrong = [name for name, term in self._terms.items() if (term - terms[name]) % _WORD]
        return sorted(wrong + self._unreadable)

    def _run(self) -> None:
        for name, spec in self._specs.items():
            if name in self._terms or name in self._unreadable:
                continue
            try:
                term = self._places.count(spec, self._stopped.is_set)
            except Exception:  # whatever it is: what cannot be read cannot be verified
                self._unreadable.append(name)
                continue
            if term is None:
                return
            self._terms[name] = term
        self._check_rest()

    def _check_rest(self) -> None:
        try:
            self._places.check()
        except Exception as error:  # likewise
            self._unreadable.append(str(error))
        self._finished = True
