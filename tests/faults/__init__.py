"""What a run survives: processes that are killed or stopped, buckets and networks that fail, disks that are full.

`python -m tests.faults [ROW ...]` plays scenarios with real processes (a trainer without training, vLLM's CPU server
as the Space, a folder or the stand-in Hub as the bucket) and prints the table; `python -m tests.faults.soak` plays a
long run with random faults.
"""
