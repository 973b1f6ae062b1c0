"""The laboratory: testbeds with a real Linux peer, and what is measured on them."""
