"""packetdrill scripts on pytcp in virtual time, or on the host's kernel in a fresh network namespace."""
