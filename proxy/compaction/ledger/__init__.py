"""The ledger: what code carries over from the originals, word for word."""
