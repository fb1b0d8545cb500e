"""From a checkout to a running fleet on the Hub: bucket, Spaces, secrets, hardware. Knows nothing of training."""
