"""The word lists as data, and the script that builds them."""
