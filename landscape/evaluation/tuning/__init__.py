"""Which engine and which batches are fastest here: a bounded search by measuring, and earlier choices."""
