"""What the user's callback returns, and the fixed samples that are chosen from its data."""
