"""The command `sluice`: what people type, and what they read."""
