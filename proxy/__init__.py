"""Foldgate: a reverse proxy that compacts long conversations transparently."""
