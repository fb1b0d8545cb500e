"""The Wordle environment as an OpenEnv server. Knows nothing of training or of the weights that play."""
