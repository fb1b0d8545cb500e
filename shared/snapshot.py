"""The weights of one verified version, by checkpoint name, and the only way they change: a whole, verified version.

Shared by the reference follower and by the vLLM receiver, which place the values differently.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from shared import fingerprint
from shared.bits import bits, spec_of
from shared.changes import Change, fingerprint_gain
from shared.errors import ChainError, IntegrityError
from shared.files import read_anchor, read_delta
from shared.types import Manifest, TensorSpec


class Snapshot:
    """Tensors on the CPU whose fingerprint is known. The dict is the caller's own, patched in place."""

    def __init__(self, tensors: dict[str, torch.Tensor], version: int | None = None) -> None:
        self.tensors = tensors
        self.version = version
        self.fingerprint = fingerprint.fingerprint(tensors)

    @classmethod
    def from_anchor(cls, manifest: Manifest, files: Sequence[Path]) -> "Snapshot":
        """Read a whole anchor. Raises IntegrityError unless it is what its manifest says."""
        snapshot = cls(read_anchor(manifest, files), manifest.version)
        found = fingerprint.to_text(snapshot.fingerprint)
        if found != manifest.fingerprint:
            raise IntegrityError(
                f"{', '.join(path.name for path in files)}: anchor {manifest.version} has fingerprint {found}, its "
                f"manifest says {manifest.fingerprint}"
            )
        return snapshot

    @property
    def specs(self) -> dict[str, TensorSpec]:
        return {name: spec_of(name, tensor) for name, tensor in self.tensors.items()}

    @property
    def total(self) -> int:
        """Elements of all tensors."""
        return sum(tensor.numel() for tensor in self.tensors.values())

    def recount(self) -> str:
        """Count the fingerprint anew. Raises IntegrityError when memory no longer holds these weights."""
        counted, kept = map(fingerprint.to_text, (fingerprint.fingerprint(self.tensors), self.fingerprint))
        if counted != kept:
            raise IntegrityError(
                f"version {self.version} recounts to {counted}, but {kept} was kept: memory is damaged"
            )
        return counted

    def stage(self, manifest: Manifest, file: Path) -> list[Change]:
        """Decode a delta on these weights and verify what it leads to; nothing is changed yet.

        Raises ChainError when the delta has another base, IntegrityError when it does not lead to its fingerprint.
        """
        self._check_base(manifest)
        patches = read_delta(manifest, file, self.specs)
        changes = [patch.on(bits(self.tensors[patch.spec.name])) for patch in patches]
        found = fingerprint.to_text(self.fingerprint + fingerprint_gain(changes))
        if found != manifest.fingerprint:
            raise IntegrityError(
                f"{file.name}: delta {manifest.version} leads to fingerprint {found}, its manifest says "
                f"{manifest.fingerprint}"
            )
        return changes

    def commit(self, version: int | None, changes: Iterable[Change]) -> None:
        """Write staged changes."""
        changes = list(changes)
        for change in changes:
            tensor = self.tensors[change.spec.name].detach()
            patterns = bits(tensor)
            patterns[change.indices] = change.new
            if not tensor.is_contiguous():  # then the patterns are a copy
                tensor.copy_(patterns.view(tensor.dtype).view(tensor.shape))
        self.fingerprint += fingerprint_gain(changes)
        self.version = version

    def undo(self, version: int | None, changes: Iterable[Change]) -> None:
        """Take committed changes back."""
        self.commit(version, [change.reversed() for change in changes])

    def _check_base(self, manifest: Manifest) -> None:
        held = fingerprint.to_text(self.fingerprint)
        if manifest.base_version != self.version or manifest.base_fingerprint != held:
            raise ChainError(
                f"delta {manifest.version} is based on version {manifest.base_version} "
                f"({manifest.base_fingerprint}), but version {self.version} ({held}) is held"
            )
