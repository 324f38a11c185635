"""Session state: what is remembered, the store port, and its adapters."""
