"""The two OpenAI APIs, each read into the neutral `Transcript` and written back: pure."""
