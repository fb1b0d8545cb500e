"""What may happen in a long run, drawn from a seed: faults of the bucket, latency, cut connections."""

import time
from collections import Counter
from random import Random
from typing import Any

from tests.faults.proxy import Proxy
from tests.hub import StandIn

_OF_BUCKET: tuple[tuple[Any, str, dict[str, float]], ...] = (
    ("status", "hub", {"status": 503}),
    ("status", "hub", {"status": 429, "retry_after": 1}),
    ("status", "storage", {"status": 500}),
    ("drop", "batch", {}),
    ("drop", "info", {}),
    ("refuse", "batch", {}),
    ("lose", "batch", {}),
    ("truncate", "xorb", {}),
    ("truncate", "info", {}),
    ("damage", "xorb", {}),
    ("stall", "info", {"seconds": 2}),
    ("slow", "storage", {"rate": 20_000}),
    ("list late", "batch", {"seconds": 1}),
    ("bytes late", "batch", {"seconds": 1}),
)
_BUCKET, _LATENCY, _CUT, _KILL = 0.25, 0.3, 0.1, 0.1  # how likely each is, per sync point


class Chance:
    """`counts` tells what happened how often."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.counts: Counter[str] = Counter()

    def before_a_point(self, hub: StandIn, proxy: Proxy) -> None:
        if self.random.random() < _BUCKET:
            kind, on, values = self.random.choice(_OF_BUCKET)
            hub.inject(kind, on, times=self.random.randint(1, 3), **values)
            self.counts["faults of the bucket"] += 1
        proxy.delay_s = self.random.uniform(0.01, 0.3) if self.random.random() < _LATENCY else 0.0
        self.counts["slow answers"] += proxy.delay_s > 0

    def cuts(self, proxy: Proxy) -> None:
        """Cut the connections to the Space, perhaps, a moment after a sync point began."""
        if self.random.random() < _CUT:
            self.moment()
            proxy.cut()
            self.counts["cuts of all connections"] += 1

    def kills(self) -> bool:
        return self.random.random() < _KILL

    def moment(self) -> None:
        time.sleep(self.random.uniform(0.0, 1.5))
