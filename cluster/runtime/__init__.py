"""What a command runs in: its process, its supervisor and logs, a session of Ray, and the files that travel to it."""
