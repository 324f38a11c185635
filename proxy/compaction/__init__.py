"""The pure rules of compaction: no I/O, no clock, no dialect."""
