"""The errors a caller of the sync can act on. Every message says what happened, with which values, and what to do."""


class SyncError(Exception):
    """Base of all errors raised here; raised itself when the caller's tensors do not fit the run."""


class IntegrityError(SyncError):
    """A file or a set of weights is not what its manifest says."""


class ChainError(SyncError):
    """No run, or no path of anchors and deltas leads to the wanted version."""


class BucketError(SyncError):
    """The bucket cannot be reached, refused a write, or is being written by somebody else."""


class FencedError(BucketError):
    """Another publisher writes the run; this one may not any more."""


class MissingFileError(BucketError):
    """The bucket answered: there is no such file."""
