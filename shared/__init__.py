"""What the three units share: words, files and rules both ends of a wire must agree on."""
