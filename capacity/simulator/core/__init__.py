"""The engines once more, compiled: plain C that does what the readable engines do, bit for bit, and fast."""
