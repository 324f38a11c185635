"""Everything that talks to an upstream."""
