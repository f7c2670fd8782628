"""Complete small examples: models, data readers, training with the collector, and `problem` callbacks."""
