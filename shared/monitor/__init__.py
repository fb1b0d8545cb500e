"""The read-only page over one bucket and what the units say; a process of its own, or mounted in another app."""
