"""`make bench`: measurements against peers in the same run. Not tests: nothing here asserts a time."""
