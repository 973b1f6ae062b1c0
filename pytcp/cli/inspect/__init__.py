"""Looking into a running stack: `pytcp ss`, `nstat`, `sysctl`, `neigh`, `route`, `addr`, `link`, in the formats of the tools of these names."""
