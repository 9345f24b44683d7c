"""The commands of `hanse-agent`. Heavy imports wait until a command runs, so that help is instant."""
