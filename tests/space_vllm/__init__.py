"""Tests of the vLLM Space: a package, so that its fixtures end with it."""
