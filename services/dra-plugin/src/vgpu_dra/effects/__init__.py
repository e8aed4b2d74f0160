"""Effects: files, NVML, claim sources. They act and decide nothing."""
