"""The training side: TRL, the tiny policy, and what carries its weights to the bucket."""
