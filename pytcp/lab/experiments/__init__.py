"""Five discussions of the kernel's network list, replayed: the algorithm before and after the patch, on this stack."""
