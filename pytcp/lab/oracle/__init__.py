"""The running kernel as an oracle: scripted workloads on it and on pytcp, compared (`tools/compare-kernel`)."""
