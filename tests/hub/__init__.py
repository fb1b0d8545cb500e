"""A stand-in for the Hub: buckets and Spaces on loopback, for the real clients of the Hub, with faults on demand.

    with stand_in() as hub:                                   # on a thread; hub.url is what HF_ENDPOINT should be
        hub.inject("status", "batch", status=503, times=2)    # the next two batches are answered 503
        ...
        assert hub.count("batch") == 3                        # requests since the start, or the last hub.clear()

`python -m tests.hub --port P --folder D` is the same as a process, and `StandIn(url)` the handle of one that runs.

`inject(kind, on, ...)`: faults wait in order, and the first that fits a request strikes it. They do not add up.
- `on` is what is asked for. Of the Hub ("hub" for all): "write-token", "read-token", "batch" (uploads and deletes take
  effect), "info" (single paths), "tree" (listings), "resolve", "bucket" (whether it is there), "bucket-create"; about
  Spaces "whoami", "space", "space-create", "duplicate", "card", "preupload", "commit", and "settings", whose `path` is
  one of secrets, variables, hardware, sleeptime, runtime, pause, restart; "app" is what a Space itself answers, whose
  `path` is one of health, status, weights/status. Of its storage ("storage" for all):
  "xorb-upload", "shard", "reconstruction", "xorb" (where downloads get their bytes from). "any" is everything.
- `path` limits it to requests that name a path in which it occurs: "batch", "info", "tree", "resolve" and
  "reconstruction" do. `times` is how many it strikes, 0: all. `after` is how many it lets pass before.
- `kind` is what happens:
  "status"      the answer is `status`, with `retry_after` as its header and `body` as its JSON; nothing else happens
  "stall"       nothing happens for `seconds`, then the connection breaks; a "xorb" stalls in its middle
  "slow"        bodies go at `rate` bytes per second
  "drop"        it takes effect, and after `seconds` the connection breaks before the answer ("resolve" has no body)
  "truncate"    the connection breaks in the middle of the answer
  "damage"      the byte in the middle of the answer is another one
  "refuse"      "batch" answers 200, and lists the path as failed
  "lose"        "batch" answers 200, and does not store the path
  "list late"   "batch" stores it, and lists it only after `seconds`
  "bytes late"  "batch" stores and lists it, and its bytes can be downloaded only after `seconds`

To lose a file for good: `hub.inject("status", "reconstruction", path="step_000003", status=404, times=0)` leaves it
listed, `hub.remove("user/name", "r/deltas/step_000003.safetensors")` does not.
Xet clients keep what they uploaded in mind, on disk: give every stand-in its own HF_XET_CACHE (`hub.environment()`).
"""

from tests.hub.faults import Kind
from tests.hub.running import StandIn, stand_in

__all__ = ["Kind", "StandIn", "stand_in"]
