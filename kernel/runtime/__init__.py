"""The edges of a process: settings, start and stop, gRPC, wake-ups, the vault."""
