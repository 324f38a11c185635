"""Small programs that run an agent's tool loop with an SDK; each is run as a process."""
