"""Random scripts of stimuli in every state of TCP, on the running kernel and on pytcp, side by side (docs/compare-kernel.md)."""
