"""The inference Space: a vLLM server whose weights follow the bucket."""
