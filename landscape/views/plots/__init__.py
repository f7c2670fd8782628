"""Drawing with matplotlib, for those who compose figures there, from the same prepared values as all figures."""
