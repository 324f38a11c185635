"""The shell around the pure rules: find state, plan, summarise, commit.

It knows ports, not adapters: a session store, a summarizer, a source of windows and an event
sink. The one fail-open point of the proxy is in `compactor`.
"""
