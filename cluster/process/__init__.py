"""The process of a command: its signals, streams and logs, and the supervisor that starts it anew."""
